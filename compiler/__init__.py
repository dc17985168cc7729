"""The pipeline from a spec to a cubin: trace, lower, compile, extract, plan."""
