"""Model files as a rank finds and reads them."""
