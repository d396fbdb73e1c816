"""Cuts a rank model into segments, and makes the ONNX Runtime session of each."""
