"""The front ``format("kafka-eos")``, and the keeper behind it."""
