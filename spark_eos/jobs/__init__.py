"""A framework for spark-submit jobs: command-line options, start, logs and clean stop; public."""
