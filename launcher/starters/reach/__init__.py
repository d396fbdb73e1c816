"""How other hosts are reached over ssh, and what is said of those that are not."""
