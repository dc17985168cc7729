"""`pallasc check`: levels that run JAX's interpreter and execute the PTX."""
