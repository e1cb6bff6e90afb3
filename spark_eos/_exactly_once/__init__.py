"""The guarantee: batch, offsets, members, task, transaction; read in this order."""
