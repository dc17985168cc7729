"""The static level: reads launch plan, PTX and machine code of a kernel, and executes nothing."""
