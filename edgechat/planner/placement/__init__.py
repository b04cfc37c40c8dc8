"""Where a model lies: the memory that may be taken, the layers on each device, and the steps down.

In come a model and a budget; out come load configurations that fit. Read `budget.py` first, then
`layout.py` and `fallback.py`.
"""
