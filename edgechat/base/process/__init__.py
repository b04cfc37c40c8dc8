"""Starting, supervising and communicating with child processes.

Input: requests; output: answers, or the reason why there is none. Read `spawn.py` first, then `child.py`
(many requests) and `ask.py` (one request, one process).
"""
