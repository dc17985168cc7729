"""The installed compiler: find it, identify it, and prepare it for workers."""
