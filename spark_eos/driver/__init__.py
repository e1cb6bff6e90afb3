"""One query on the driver: membership, committed offsets, batches."""
