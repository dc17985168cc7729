"""Specs and tables from other people's tables of tuned kernels."""
