"""The subcommands of shardrun, one module each."""
