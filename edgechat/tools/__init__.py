"""Tools that a model can call in a chat: tools from MCP servers, and a few built-in ones.

Input: the tools chosen for a chat (`files:FOLDER`, or the name of a server in mcp.json), and the model's
calls. Output: tool descriptions for the model, and the results of its calls, bounded in time and size. Only
harmless tools are called without the user's consent. Read `tool.py` first, then `registry.py` and
`consent.py`.
"""
