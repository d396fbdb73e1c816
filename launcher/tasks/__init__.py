"""The work behind the commands: run, evaluate, convert, compare."""
