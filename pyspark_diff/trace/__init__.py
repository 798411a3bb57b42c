"""Arrangements: collections indexed by key, in immutable sorted batches."""
