"""The Open Inference Protocol (KServe's version 2) over gRPC."""
