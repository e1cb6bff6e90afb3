"""Helpers that tests share: to produce and consume records, start queries and disturb workers."""
