"""Formats other than ONNX, each turned into ONNX."""
