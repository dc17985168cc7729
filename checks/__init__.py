"""What `pallasc check` looks for: in plan and PTX, in JAX's interpreter, and by running the PTX."""
