"""Anthropic's Messages API: POST /v1/messages, for coding agents above all.

blocks.py       the parts of messages, as clients send them, and send them back
request.py      the body
answer.py       from the engine's events to a message, whole or as the events of a stream
"""
