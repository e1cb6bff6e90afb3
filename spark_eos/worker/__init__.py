"""One task on Spark's workers: rows into transactions."""
