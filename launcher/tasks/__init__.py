"""What the commands do with a group: run, evaluate, convert, compare."""
