"""Requests to brokers, typed, and what is known of their answers."""
