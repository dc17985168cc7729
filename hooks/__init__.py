"""Build-backend hooks that make the bundles of a wheel."""
