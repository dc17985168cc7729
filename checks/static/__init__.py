"""The static level: what plan, PTX and machine code of a kernel tell without running it."""
