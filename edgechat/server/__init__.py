"""`edgechat serve`: models for other programs, over HTTP. Starlette, uvicorn and Prometheus only here.

In come requests in the protocols of OpenAI, Anthropic and Ollama, out come answers, whole or while they are
generated. A request goes down this list; what it needs of the models is written in `pool/models.py`.

serving.py                  the socket, uvicorn's life, signals
http/connection.py          a client's connection, with bounds for who sends, reads or takes too much
http/access_log.py          what became of each request
http/access_policy.py       who may speak to the server; api_key.py makes the key
app.py                      the paths
endpoints/                  what each path does, by protocol
http/exchange.py            a bounded body in, bytes out, and a client that may go away
protocol/                   requests and answers, a folder for each protocol; openapi.py describes them
http/streams.py             answers as they come from the engine
http/http_errors.py         from errors to statuses; refusal.py writes them
pool/pool.py                the models, and who may ask which
pool/residency.py           which of them are loaded: on demand, and others unloaded that are in the way
pool/model_slot.py          one of them: its engine, and who is here for it
pool/available_models.py    what clients may name
metrics.py                  what is counted
factory.py                  the pool over real engines
agents.py                   how coding agents are told where a server is
"""
