"""`pallasc tune`: which variant of a kernel is used where, planned, measured and picked."""
