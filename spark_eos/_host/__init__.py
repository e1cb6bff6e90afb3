"""The host: private directories and other processes."""
