"""Child processes: starting, supervising and communicating with them.

There are two protocols: `ask.py` starts a process for a single request, while `child.py` uses one for many.
`file_decoder.py` sends untrusted files to a child of the second kind; `program.py` runs a program other than
edgechat. Read `spawn.py` first.
"""
