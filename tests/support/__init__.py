"""Helpers that tests share: they produce and consume records, start queries, disturb workers."""
