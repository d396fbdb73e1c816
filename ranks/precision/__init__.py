"""In which floating-point type each node of a model computes."""
