"""Arguments and options that commands share, and what they select."""
