"""The computer a process runs on: private directories, other processes."""
