"""The cache folder: its kinds, locks, limit, and whether what lies there is whole."""
