"""Tools that a model may call in a chat: those of MCP servers, and a few built in.

In: the tools that a chat has chosen (`files:FOLDER`, or the name of a server in mcp.json), the calls of a
model. Out: what the model is told of them, and the results of calls, bounded in time and size. Nothing is
called that the user has not consented to. Read `tool.py` first, then `registry.py` and `consent.py`.
"""
