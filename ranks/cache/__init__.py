"""The cache folder: the kinds of things in it, their locks, its limit, and what may be damaged."""
