"""Run the PTX that ships, with the plan that ships, on a machine without a GPU."""
