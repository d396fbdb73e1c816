"""The names of ONNX Runtime's execution providers that are used here."""

SUFFIX = "ExecutionProvider"
CPU, CUDA, TENSORRT, CANN = (f"{name}{SUFFIX}" for name in ("CPU", "CUDA", "Tensorrt", "CANN"))
