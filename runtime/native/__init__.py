"""Launching from C: sources and header of the library, the extension, and the loader of both."""
