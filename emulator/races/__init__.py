"""Detects races and related errors that may not show in a kernel's results (`observer`)."""
