"""OpenAI's Responses API: POST /v1/responses, for coding agents above all.

items.py        what was said before, as clients send it back
tools.py        the tools, of which agents have several kinds
request.py      the body
output.py       a response, and the events of its stream
answer.py       from the engine's events to both
storing.py      stored responses, and how requests refer to them
"""
