"""A MindIR program followed from its inputs: calls, branches, loops, and what is changed in place."""
