"""From a callable to a checked artifact, in a compiling process: trace, lower, compile, check."""
