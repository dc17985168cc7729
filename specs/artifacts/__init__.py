"""The result of a compilation: cubins, launch plans, and the record that names them."""
