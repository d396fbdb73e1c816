"""What ``shardrun doctor`` looks at: whether this machine, and the hosts of a table, can do the work."""
