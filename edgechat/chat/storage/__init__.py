"""The store of conversations: one SQLite database, and the thread that accesses it.

Input: chats and turns; output: chats, turns, lists and search hits. Read `store.py` first, then
`statements.py`.
"""
