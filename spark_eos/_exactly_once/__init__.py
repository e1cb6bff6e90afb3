"""The exactly-once guarantee. Read the modules in this order.

On the driver: batch, offsets, members. On Spark's workers: task, transaction.
"""
