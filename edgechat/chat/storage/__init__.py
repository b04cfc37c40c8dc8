"""The store of conversations: one SQLite database, and the thread that speaks to it.

In come chats and turns as values; out come lists, hits and changes. Read `store.py` first,
then `statements.py`.
"""
