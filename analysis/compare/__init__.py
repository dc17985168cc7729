"""Two sides of compiled variants, aligned and compared: resources, instructions, source lines."""
