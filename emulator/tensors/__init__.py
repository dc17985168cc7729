"""What tensor cores and the units beside them do with memory, as functions over arrays."""
