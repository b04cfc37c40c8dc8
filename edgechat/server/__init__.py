"""`edgechat serve`: makes models available to other programs over HTTP.

Only this package uses Starlette, uvicorn and Prometheus. Requests arrive in the OpenAI, Anthropic and Ollama
protocols, and answers are sent as a whole or as a stream. A request passes through these modules:

serving.py      the socket, signals, and uvicorn from startup to graceful shutdown
connection.py   limits on slow and greedy clients
access.py       the access log, host names, web origins and API keys
app.py          the table of operations, from which the routes and the OpenAPI description are generated
operation.py    one operation: from the request body to the response body
exchange.py     the request and its response
protocol/       request and response bodies in all protocols
media.py        images and audio; documents.py: passages from documents
pool/           the models: which ones are loaded, and which of them serves a request
refusal.py      errors as HTTP statuses, and in each protocol's format

mcp_documents.py implements `edgechat docs serve`: the same documents over MCP.
"""
