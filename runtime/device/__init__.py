"""The driver, its devices, streams and memory, and the cubins loaded into it."""
