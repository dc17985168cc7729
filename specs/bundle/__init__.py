"""Bundles: many compiled variants in one file that travels in a wheel."""
