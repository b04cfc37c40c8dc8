"""From tokens to a reply: text, thinking, tool calls, and the grammar that it may have to follow.

In come the bytes of tokens; out come pieces of text and calls. Read `generation.py` first, then `reply.py`
and `grammar.py`.
"""
