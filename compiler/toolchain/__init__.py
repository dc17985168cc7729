"""The installed compiler: found, identified, and prepared for workers."""
