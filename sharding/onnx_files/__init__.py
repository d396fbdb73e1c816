"""ONNX files as they lie on the disk: read without their weights, checked, with links and external data."""
