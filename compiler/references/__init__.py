"""References for results: random inputs, reference functions in workers, and tolerances."""
