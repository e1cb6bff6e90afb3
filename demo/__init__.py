"""The demonstration: spark-eos and Spark's own sink with the same orders, kills and losses.

`scenario` starts and kills each sink's query; `report` compares their output.
"""
