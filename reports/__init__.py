"""HTML reports: one file about a build, which opens offline."""
