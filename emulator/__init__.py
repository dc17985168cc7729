"""Executes the launch plan and the PTX of an artifact on the CPU."""
