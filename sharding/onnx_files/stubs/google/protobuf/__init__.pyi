"""What is used of protobuf, which ships no types: with it the fields of ONNX messages are checked."""
