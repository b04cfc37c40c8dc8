"""Remote engines: use chat completions over HTTP instead of a worker's pipe.

Takes a ChatRequest and returns the same events as a worker. Read `engine.py` first, then `request.py`
(request bodies) and `reply.py` (chunks of the reply).
"""
