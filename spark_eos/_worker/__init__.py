"""One task on Spark's workers: writes rows in transactions."""
