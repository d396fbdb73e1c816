"""The search for a plan: what each node could do, what that costs, and the best of it."""
