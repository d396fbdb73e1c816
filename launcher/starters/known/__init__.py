"""The ways to start ranks: one module each, with its name, which says what it can and makes the launcher."""
