"""What GPUs and NPUs this machine has, and the calls of their drivers."""
