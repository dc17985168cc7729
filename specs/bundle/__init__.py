"""Bundles: many compiled variants in one file that ships in a wheel."""
