"""The user's source lines of machine code and PTX: made, stored, read, joined with the code."""
