"""A reply, saved while it is generated, with the tool calls that it makes.

Input: a request and the tools that it can call; output: events from the engine and the calls, and the stored
turn. Read `reply.py` first, then `calls.py`.
"""
