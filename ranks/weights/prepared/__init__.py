"""Weights on disk in the form that ONNX Runtime computes with; all processes that use them map the files."""
