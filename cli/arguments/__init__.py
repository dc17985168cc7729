"""Arguments and options shared by commands, and the variants they select."""
