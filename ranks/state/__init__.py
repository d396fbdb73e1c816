"""State that a model carries from one step to the next: caches of keys and values, recurrent states."""
