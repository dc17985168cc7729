"""The artifact level: the PTX that ships is executed with the plan that ships."""
