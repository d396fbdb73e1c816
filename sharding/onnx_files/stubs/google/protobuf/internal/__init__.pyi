"""The containers of fields, of which ONNX's own types speak."""
