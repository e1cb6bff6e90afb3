"""Batch reports as logs, metrics and callbacks; a public package."""
