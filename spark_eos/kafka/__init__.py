"""Typed requests to brokers and the meaning of their answers."""
