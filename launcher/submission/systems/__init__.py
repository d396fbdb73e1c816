"""The job systems: one module each, with its name, which writes jobs for it and asks it about them."""
