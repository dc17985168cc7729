"""A build that is repeated whenever one of its files changes."""
