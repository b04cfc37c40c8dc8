"""Where a model lies: the memory that may be taken, the layers on each device, and the steps down.

In come a model and a budget; out come load configurations that fit. Read `budget.py` first, then
`load_configs.py` and `fallback.py`.
"""
