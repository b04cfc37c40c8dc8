"""Replies: text, thinking and tool calls from tokens, and grammars that a reply must follow.

Takes the bytes of tokens, returns pieces of text and calls. Read `generation.py` first, then `reply.py` and
`grammar.py`.
"""
