"""What `pallasc diff` compares, and how it shows it."""
