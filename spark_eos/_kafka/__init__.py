"""Typed requests to brokers and the meaning of their answers."""

import spark_eos._client  # noqa: F401 - before kafka-python, which it imports quietly
