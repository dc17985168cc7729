"""The CUDA driver, its devices, streams and memory."""
