"""Who computes next: sequences, slots and batches, sized by what calls have cost; chats between two turns.

In come requests with their tokens; out come batches for the backend. Read `scheduler.py` first, then
`chat_cache.py`.
"""
