"""Documents of this machine for clients: what a request may ask of them, and what an answer says of them.

In go names of documents and a chat; out come passages, with sources that name no path of this machine.
asked.py        the field `docs` of requests
finding.py      finds the passages; says which documents clients may use
vector_stores.py  the same as OpenAI's clients list and search it
mcp_server.py   the same over MCP, for `edgechat docs serve`
sources.py      where the passages of an answer are from, and what it cites
"""
