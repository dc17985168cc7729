"""PTX as data: kernels, registers, instructions."""
