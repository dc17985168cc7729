"""The terminal: its streams, its width, what it can draw, signals and times."""
