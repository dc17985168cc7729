"""How arrays of each framework are met; a module here imports its framework, nothing else does."""
