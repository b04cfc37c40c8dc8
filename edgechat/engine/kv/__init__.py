"""What is kept of computed prompts: the prefix cache, and the states of chats on disk.

In come tokens, out come a slot and how many of them it has already. Read `prefix_cache.py` first, then
`state_store.py`.
"""
