"""Programs of MPI libraries that run, and start ranks."""
