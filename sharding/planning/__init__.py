"""The plan of a slicing, from a graph and its options."""
