"""Tensor core, tensor memory and tensor copy operations, as functions over arrays."""
