"""The models that a server has loaded: which one answers a request, and which have to go for it.

In come names of models and places in a queue; out come loaded engines. Read `pool.py` first, then
`model_slot.py` (one model) and `residency.py` (several in one memory).
"""
