"""A reply, saved while it is generated, with the tool calls that it makes.

Takes a request and the tools that it can call. Yields the engine's events and those of the calls, and stores
the turn. Read `reply.py` first, then `calls.py`.
"""
