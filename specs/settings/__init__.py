"""Settings of a project in its `pyproject.toml`."""
