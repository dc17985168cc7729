"""`pallasc check`: levels that read plan and PTX, run JAX's interpreter, and execute the PTX."""
