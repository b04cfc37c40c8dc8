"""One reply: saved while it is generated, with the tool calls that it makes.

Input: a request and the tools that may be called; output: the events of the engine and of the calls, and the
stored turn. Read `reply.py` first, then `calls.py`.
"""
