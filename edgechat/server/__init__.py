"""`edgechat serve`: models for other programs, over HTTP. Starlette, uvicorn and Prometheus only here.

A request goes down this list; what it needs of the models behind it is written in models.py.

serving.py     the socket, uvicorn's life, signals
connection.py  a client's connection, with bounds for who sends, reads or takes too much
account.py     what became of each request
guard.py       who may speak to the server; key.py makes the key
app.py         the paths
exchange.py    a bounded body in, bytes out, and a client that may go away
protocol/      OpenAI's requests and answers, and openapi.py that describes them
streams.py     answers as they come from the engine, sent whole or while they are written
faults.py      from errors to statuses; refusal.py writes them
pool.py        the models, and who may ask which
placing.py     which of them are loaded: on demand, and others unloaded that are in the way
lane.py        one of them: its engine, and who is here for it
shelf.py       what clients may name
metrics.py     what is counted
real.py        the pool over real engines
"""
