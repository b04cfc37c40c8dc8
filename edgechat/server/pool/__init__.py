"""A server's models: which one answers a request, and which are unloaded to make room for it.

models.py is the interface that requests see. Read pool.py first, then residency.py, which shares the memory
among several models. available_models.py finds the models on this machine, and metrics.py counts.
"""
