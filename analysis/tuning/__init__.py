"""Points of tuned kernels, judged without a GPU: what is dropped, and the order of the rest."""
