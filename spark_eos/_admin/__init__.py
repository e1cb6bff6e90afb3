"""Operators' tasks: show a query's state, migrate a query from Spark's own sink."""
