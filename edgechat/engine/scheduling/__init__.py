"""Scheduling: decides what to compute next, in batches sized by measured costs, and what to do between turns.

Takes requests with their tokens and returns batches for the backend. Read `scheduler.py` first, then
`chat_cache.py`.
"""
