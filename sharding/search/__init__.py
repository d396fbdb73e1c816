"""The search for a plan: what each node can do, what that costs, and which choices cost least together."""
