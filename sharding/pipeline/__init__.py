"""Pipeline stages and the rows of a batch."""
