"""Run it: one step loop over several backends, in a process of its own.

In come a LoadPlan and requests, out come events. Read `engine.py` first, then `scheduling/` and `worker/`.
"""
