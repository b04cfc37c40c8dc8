"""From tokens to a reply: text, thinking, tool calls, and the grammar that it may have to follow.

Takes the bytes of tokens; returns pieces of text and calls. Read `generation.py` first, then `reply.py`
and `grammar.py`.
"""
