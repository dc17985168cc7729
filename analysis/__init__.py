"""Analysis of compiled kernels: their SASS, and metrics derived from it and from the plan."""
