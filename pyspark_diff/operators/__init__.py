"""The operators of a dataflow, one to a file."""
