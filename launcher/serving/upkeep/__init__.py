"""Models that change while they are served: new weights, and new versions."""
