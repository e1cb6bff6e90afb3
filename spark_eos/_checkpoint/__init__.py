"""Spark's checkpoint: its offset log, the query's marker, checks."""
