"""Networks that are Python code: built, given weights, and exported to ONNX by torch or MindSpore."""
