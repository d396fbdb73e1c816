"""Makes the plan of a slicing: chooses the mesh, applies demands, runs the search, describes the result."""
