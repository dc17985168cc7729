"""A remote store that machines share, read and written through obstore."""
