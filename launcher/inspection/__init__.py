"""What a model, a plan or a slice folder holds, to print and to draw."""
