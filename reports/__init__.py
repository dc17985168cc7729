"""HTML reports: one file about a build, readable offline."""
