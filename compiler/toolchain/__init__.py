"""What is installed that compiles: found, identified, and made ready for workers."""
