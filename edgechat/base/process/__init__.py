"""Child processes: starting, supervising and communicating with them.

Two protocols: `ask.py` starts a process for one request, `child.py` keeps one for many. `file_decoder.py`
sends untrusted files to such a child; `program.py` runs a program other than edgechat. Read `spawn.py` first.
"""
