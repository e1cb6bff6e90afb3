"""What the tests share: records in and out, queries to start, workers to disturb."""
