"""The front for foreachBatch, in classic Spark and on Spark Connect."""
