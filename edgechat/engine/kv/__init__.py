"""What is kept of computed prompts: the prefix cache, the chats in it, and their states on disk.

In come tokens, out come a slot and how many of them it has already. Read `prefix_cache.py` first, then
`chat_cache.py` and `state_store.py`.
"""
