"""Checks of the cluster and of batches, before and during a run."""
