"""What results are compared with: random inputs, reference functions in workers, tolerances."""
