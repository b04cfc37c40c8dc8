"""Prompts: from the messages of a request to tokens.

Takes messages and tools, returns tokens; only the template's own text becomes control tokens. Read
`prompts.py` first, then `template.py` and `control_tokens.py`.
"""
