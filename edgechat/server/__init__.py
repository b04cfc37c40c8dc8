"""`edgechat serve`: models for other programs, over HTTP. Starlette, uvicorn and Prometheus only here.

pool.py     the models: loaded on demand, unloaded when idle or in another's way
lane.py     one of them: its engine, and who is here for it
shelf.py    what clients may name
metrics.py  what is counted
real.py     the pool over real engines
"""
