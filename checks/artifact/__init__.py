"""The artifact level: executes the launch plan and the PTX of an artifact."""
