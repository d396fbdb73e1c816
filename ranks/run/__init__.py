"""One rank's model as it runs: segments, collectives between them, requests."""
