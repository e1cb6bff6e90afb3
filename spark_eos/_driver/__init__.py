"""The driver's side of one query: group membership, committed offsets, batches."""
