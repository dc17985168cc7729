"""Which of the measured variants of tuned kernels are used: a smallest set of them, as rows."""
