"""How ranks are started (here, by mpirun, by scripts), and what their ends mean."""
