"""One reply: saved while it is generated, with the calls of tools that it makes.

In: a request and what its reply may call. Out: the engine's events, those of the calls, and the turn that is
stored. Read `reply_loop.py` first, then `calls.py` and `reply_saver.py`.
"""
