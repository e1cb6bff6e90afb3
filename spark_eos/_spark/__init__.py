"""Exactly-once through foreachBatch, on classic Spark and Spark Connect."""
