"""From a model file to a graph with the shapes of all its values."""
