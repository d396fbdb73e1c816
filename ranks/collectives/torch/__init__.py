"""Collectives through torch.distributed: Gloo, NCCL and HCCL."""
