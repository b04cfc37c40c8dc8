"""Tools of MCP servers. The official SDK speaks to each server in a separate child process (`child.py`).

So edgechat parses nothing that a server sends and is safe from a child that hangs or grows; and a server ends
with its child, which ends with edgechat, even if that is killed. Read `server.py` first, then
`connection.py`, which defines the messages, and `child.py`.
"""
