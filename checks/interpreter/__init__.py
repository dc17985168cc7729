"""The interpreter level: JAX's interpreter of Mosaic kernels, watched for waits without an end."""
