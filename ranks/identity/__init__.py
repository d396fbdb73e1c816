"""Who a process is: its rank, the number of ranks, its host."""
