"""What to compute next: sequences, slots and batches sized by measured costs; chats between two turns.

In come requests with their tokens; out come batches for the backend. Read `scheduler.py` first, then
`chat_cache.py`.
"""
