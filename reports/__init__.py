"""The report that people look at: one HTML file about a build, which opens offline."""
