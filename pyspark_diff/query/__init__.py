"""Queries that a user has already: SQL text and DataFrames, kept up to date.

A reader turns a query into the relational form (`form`), a tree of frozen nodes. One function
translates the form into the operators of a `DiffFrame` (`translation`). `plan_reader` reads the
plan that Spark has analysed.
"""
