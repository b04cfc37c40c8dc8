"""A reply, saved while it is generated, with the tool calls that it makes.

Takes a request and the tools that it can call. Yields events from the engine and the calls, and stores the
turn. Read `reply.py` first, then `calls.py`.
"""
