"""Prompts: turn a request's messages and tools into tokens.

Only the template's own text becomes control tokens. Read `prompts.py` first, then `template.py` and
`control_tokens.py`.
"""
