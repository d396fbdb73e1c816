"""Weights in the form that ONNX Runtime computes with, on disk, mapped by all who use them."""
