"""Whole programs, compiled for a described machine into JAX's persistent compilation cache."""
