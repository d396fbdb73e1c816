"""From one model to one model per rank: read, plan, write. Pure: no processes, no sessions, no torch, no MPI."""
