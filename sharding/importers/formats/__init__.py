"""Formats that are turned into ONNX: one module each, with its name."""
