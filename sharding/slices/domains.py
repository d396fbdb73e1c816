"""Domains of the operators of rank models, beside ONNX's own."""

MICROSOFT = "com.microsoft"
"""Of ONNX Runtime's operators, ``AllReduce``, ``AllGather`` and ``AllToAll`` among them."""
OWN_DOMAIN = "shardrun"
"""Of ``Broadcast(root)``, ``Send(peer, announce)`` and ``Recv(peer, dtype, shape, announce)``; ``peer`` is a
pipeline stage."""
