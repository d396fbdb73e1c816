"""What a context and a configuration ask for."""
