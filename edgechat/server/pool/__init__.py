"""The models of a server: which one answers a request, and which are unloaded for it.

models.py is the interface that requests see. Read pool.py first, then residency.py: several models in one
memory. available_models.py finds the models on this machine; metrics.py counts.
"""
