"""What speaks HTTP: from bytes on a connection to a request that may be answered, and back.

In come connections and their requests; out go exchanges that are allowed, and answers or refusals as OpenAI's
clients know them. Read `connection.py` first, then `access_policy.py` and `exchange.py`.
"""
