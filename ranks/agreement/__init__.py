"""What ranks compare before they run together: their collectives, and which part each has loaded."""
