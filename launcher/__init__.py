"""Starting, watching and serving groups of ranks; the shardrun command."""
