"""`pallasc bundle`: one file a subcommand."""
