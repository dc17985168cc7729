"""Compile variants on the workers of a dask cluster: `--executor dask://host:8786`."""
