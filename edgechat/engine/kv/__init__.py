"""Prefix cache and saved KV states.

Takes tokens, returns a slot and how many of the tokens it holds already. Read `prefix_cache.py` first, then
`state_store.py`.
"""
