"""The small runtime: open, choose, check, launch."""
