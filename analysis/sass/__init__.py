"""SASS as instructions: read from nvdisasm, classified, loops found, registers normalized."""
