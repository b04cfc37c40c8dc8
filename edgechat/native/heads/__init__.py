"""Layers that draft for a model from its own hidden states, in contexts of their own.

context.py     a model's own (MTP), or those of a file beside it
eagle.py       EAGLE-3's
assistant.py   Gemma 4's drafter, which reads its target's KV cache
"""
