"""Packs: many files of a store in one file."""
