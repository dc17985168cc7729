"""The interpreter level: runs JAX's interpreter of Mosaic kernels, and detects deadlocks in it."""
