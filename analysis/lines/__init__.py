"""The user's source lines of machine code and PTX: found, stored, read, joined with the code."""
