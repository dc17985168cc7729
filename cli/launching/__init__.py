"""What launches kernels on the GPU at hand: operands, outcomes, measurements."""
