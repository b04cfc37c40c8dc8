"""Prefix cache and saved KV states.

Takes tokens and returns a slot, and how many of the tokens it already holds. Read `prefix_cache.py` first,
then `state_store.py`.
"""
