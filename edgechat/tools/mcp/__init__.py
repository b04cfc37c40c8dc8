"""Tools from MCP servers. The official SDK talks to each server in a separate child process (`child.py`).

This way, edgechat never parses what a server sends, and is safe even if the child hangs or uses too much
memory. A server exits when its child does, and the child exits when edgechat does, even if edgechat is
killed. Read `server.py` first, then `connection.py`, which defines the messages, and `child.py`.
"""
