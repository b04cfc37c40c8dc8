"""Tools of MCP servers. The official SDK speaks to a server, in a child process for each: see `child.py`.

So nothing that a server sends is read in the program of the user, which a child that hangs or grows cannot
harm, and a server ends with its child, which ends with the program, even if that is killed. Read `server.py`
first, then `connection.py`, which has the messages, and `child.py`.
"""
