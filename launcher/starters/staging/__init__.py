"""A model's files, copied to the hosts of its ranks where these have no common file system."""
