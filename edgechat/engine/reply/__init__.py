"""Replies: split tokens into text, thinking and tool calls, and enforce grammars.

Takes the bytes of tokens and returns pieces of text and calls. Read `generation.py` first, then `reply.py`
and `grammar.py`.
"""
