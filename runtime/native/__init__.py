"""Launching from C: sources and header of the library, and what loads it."""
