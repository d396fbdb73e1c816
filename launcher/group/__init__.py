"""A started group of ranks: watched, asked for predictions, and ended; finds the first cause of a failure."""
