"""What a compilation makes: cubins, launch plans, and the record that names them."""
