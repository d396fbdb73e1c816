"""One copy of the weights for several processes: owners, and those that attach."""
