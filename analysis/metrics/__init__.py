"""Numbers of a launch that need no GPU: occupancy, instructions, bytes, operations, roofline."""
