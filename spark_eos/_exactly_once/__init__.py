"""The guarantee; read in this order.

On the driver: batch, offsets, members. On Spark's workers: task, transaction.
"""
