"""Tuned kernels: points are planned, measured against each other, and picked as rows of a table."""
