"""SASS as instructions: read from nvdisasm, classed, its loops found, its registers renamed."""
