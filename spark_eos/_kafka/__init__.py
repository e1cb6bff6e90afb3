"""Typed requests to brokers, and the interpretation of their answers."""

import spark_eos._client  # noqa: F401 - hides kafka-python's import warnings
