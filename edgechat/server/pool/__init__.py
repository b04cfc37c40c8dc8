"""A server's models: which one answers a request, and which are unloaded to make room for it.

Read pool.py first. Then read models.py, which describes a model as it is listed, loaded, and used by a
request, and residency.py, which divides the memory between models. available_models.py finds the models on
this machine, and metrics.py collects the metrics.
"""
