"""The state of a query: its group's offsets, members, transactions and cluster."""
