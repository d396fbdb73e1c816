"""What a slice folder says of itself: the manifest, the mesh of ranks, where the data of a value lies."""
