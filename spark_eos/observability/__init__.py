"""Batch reports as logs, metrics and callbacks. Public."""
