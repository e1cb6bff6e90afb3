"""Inflicts faults on a running query, chosen by a seed, and lets `spark_eos.verify` judge it.

``make chaos`` runs it; docs/reliability.md has the results.
"""
