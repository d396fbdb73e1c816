"""Messages between a rank and its launcher."""
