"""Exactly-once through ``format("kafka-eos")``, and the keeper process behind it."""
