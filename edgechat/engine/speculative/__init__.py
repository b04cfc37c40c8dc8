"""Speculative decoding with bounded losses: drafts of the next tokens, verified by one call of the target.

Read `speculation.py` first (how the engine's steps use drafts), then `drafters.py`, `controller.py` (how many
tokens to draft) and `estimates.py` (acceptance rates and the cost of steps).
"""
