"""How good a model is: labelled data in batches, metrics of its predictions."""
