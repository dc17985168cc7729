"""The static level: what plan and PTX of a kernel tell without running it."""
