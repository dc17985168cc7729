"""Worker processes that compile: start, feed, watch, replace, and stop them."""
