"""MindIR, the graph format of MindSpore."""
