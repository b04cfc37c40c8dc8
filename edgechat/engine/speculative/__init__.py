"""Speculative decoding with bounded losses: the next tokens are drafted, then verified by one target call.

Read `speculation.py` first (how the engine's steps use drafts), then `drafters.py`, `controller.py` (how many
tokens to draft) and `estimates.py` (acceptance rates and the cost of a step).
"""
