"""Tools that a model may call in a chat: those of MCP servers, and a few that are built in.

Input: the tools chosen for a chat (`files:FOLDER`, or the name of a server in mcp.json), and the calls of the
model. Output: descriptions for the model, and results of calls, bounded in time and size. Nothing is called
without the user's consent. Read `tool.py` first, then `registry.py` and `consent.py`.
"""
