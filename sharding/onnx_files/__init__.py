"""Reads ONNX files without their weights, checks them, and finds where their external data lie."""
