"""Prefix cache and saved KV states.

Given a prompt's tokens, the cache returns a slot and the number of those tokens that the slot already holds.
Read `prefix_cache.py` first, then `state_store.py`.
"""
