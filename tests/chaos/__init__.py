"""Faults against a running query, from a seed, judged by `spark_eos.verify`.

``make chaos`` runs it; docs/reliability.md has the results.
"""
