"""ONNX Runtime sessions, and a rank model cut into what each session runs."""
