"""Match a call's arguments to a variant of the kernel."""
