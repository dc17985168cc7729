"""The arguments of a call, and the variant that takes them."""
