"""Downloads the jars named in lock files, and finds the Java that runs them."""
