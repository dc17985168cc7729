"""Launching from C: sources and header of the library, the extension, and what loads them."""
