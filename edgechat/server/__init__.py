"""`edgechat serve`: models for other programs, over HTTP. The only user of Starlette, uvicorn and Prometheus.

Requests arrive in the protocols of OpenAI, Anthropic and Ollama; answers leave as a whole or as a stream. A
request passes these modules:

serving.py      the socket, signals, and uvicorn from start to graceful shutdown
connection.py   limits on slow and greedy clients
access.py       the access log, host names, web origins and API keys
app.py          the table of operations, which routes and openapi.py are made of
operation.py    one operation: from the bytes of a body to those of an answer
exchange.py     the request and its response
protocol/       the bodies and answers of all protocols
media.py        images and sounds; documents.py: passages of documents
pool/           the models: which are loaded, and which request gets them
refusal.py      errors, as statuses and in the words of each protocol

mcp_documents.py is `edgechat docs serve`: the same documents over MCP.
"""
