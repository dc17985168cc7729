"""`pallasc cache`: one file a subcommand."""
