"""Engine: one step loop for several backends, in a worker process.

Takes a LoadPlan and requests, and returns events. Read `engine.py` first, then `scheduling/` and `worker/`.
"""
