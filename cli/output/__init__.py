"""Output of commands: text, JSON and report files, terminal progress, signals, and exit codes."""
