"""What ranks compare before they run together: collectives, parts, devices."""
