"""Bodies that are large, read in pieces."""
