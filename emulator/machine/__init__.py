"""The machine that runs kernels: memory, warps, blocks, barriers, and asynchronous operations."""
