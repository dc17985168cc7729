"""The command `pallasc bundle`, one file per subcommand."""
