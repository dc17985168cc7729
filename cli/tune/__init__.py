"""The command `pallasc tune`, one file per subcommand."""
