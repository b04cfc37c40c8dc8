"""Requests and answers as Structs, by protocol: what is decoded, refused, and described in /openapi.json.

Each folder translates between a protocol and the engine: a body becomes a ChatRequest, and `answers.Answers`
makes the engine's events bytes again. Nothing below knows of protocols.
"""
