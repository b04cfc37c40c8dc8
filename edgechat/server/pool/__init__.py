"""A server's models: which one answers a request, and which are unloaded to make room for it.

Read pool.py first, then models.py, one model as it is listed, loaded and used by a request, and residency.py,
which shares the memory among several models. available_models.py finds the models on this machine, and
metrics.py counts.
"""
