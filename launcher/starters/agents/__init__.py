"""The processes that start ranks on other hosts, and the ways to them."""
