"""The command `pallasc import`, one file a subcommand."""
