"""What a project says in its `pyproject.toml`."""
