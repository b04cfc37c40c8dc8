"""Engines on other servers: chat completions over HTTP in place of a worker's pipe.

A ChatRequest comes in, the same events as a worker's go out. `engine` is the Engine; `request` makes the body
of a request, `reply` reads the chunks of the answer. Begin with `engine`.
"""
