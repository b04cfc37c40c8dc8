"""Speculative decoding with bounded losses: drafts of the next tokens, verified by one call of the target.

Read `speculation.py` first (drafts in the engine's step), then `drafters.py`, `controller.py` (how many
tokens to draft) and `estimates.py` (acceptance of drafts, cost of steps).
"""
