"""Reports of batches as logs, metrics and callbacks. Public."""
