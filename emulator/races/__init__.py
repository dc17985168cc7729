"""Races and their kin: what a kernel does that its numbers may not show (`observer`)."""
