"""Pure functions on numpy and Arrow arrays: what to compute, with no Spark and no I/O."""
