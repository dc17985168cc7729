"""Points of tuned kernels measured against each other on a GPU: processes, rounds, decisions."""
