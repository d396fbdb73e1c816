"""The most of everything: numbers that flags, files and messages may not exceed, each said once."""

MAX_RANKS = 4096
MAX_MICRO_BATCHES = 1 << 16
"""A rank model's metadata says their number with five digits."""
MAX_THREADS = 1024
"""Of one rank."""
MAX_LENGTH = 2**31 - 1
"""Of an axis that is open in the model, as a flag or a job file says it."""
LONGEST_TIMEOUT = 1e7
"""Seconds, almost four months: the system's calls take no number, however large."""
MAX_PORT = 65535
