"""From a callable to a checked artifact, inside a worker: trace, lower, compile, check."""
