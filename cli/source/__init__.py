"""Lines of the user's source, shown by `inspect`, found by `build`, shipped by `bundle create`."""
