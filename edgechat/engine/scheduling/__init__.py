"""Who computes next: sequences, slots and batches, sized by what calls have cost.

In come requests with their tokens; out come batches for the backend. Read `scheduler.py` first.
"""
