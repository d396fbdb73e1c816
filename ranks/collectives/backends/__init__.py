"""The collective backends: one module each, with its name, which says what it is and how to connect."""
