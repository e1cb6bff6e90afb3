"""`ExactlyOnceSink`: reading, writing, and the function that foreachBatch calls."""
