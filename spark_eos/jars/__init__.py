"""Jars by lock file, and the Java that runs them."""
