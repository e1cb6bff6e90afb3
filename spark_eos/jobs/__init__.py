"""The frame of spark-submit jobs. Public."""
