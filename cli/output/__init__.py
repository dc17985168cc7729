"""Output of commands: text, JSON, report files, and progress on the terminal."""
