"""Starting, supervising and communicating with child processes.

In come questions, out come answers or the reason why there is none. Read `spawn.py` first, then `child.py`
(many questions) and `ask.py` (one question, one process).
"""
