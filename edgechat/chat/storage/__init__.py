"""The store of conversations: one SQLite database, and the thread that accesses it.

Takes chats and turns, and returns chats, turns, lists and search hits. Read `store.py` first, then
`statements.py`.
"""
