"""The demonstration: the same orders, kills and losses for spark-eos and for Spark's own sink.

`scenario` starts and kills each sink's query, `report` compares what they have written.
"""
