"""From the messages of a request to the tokens of its prompt.

In come messages and tools; out come tokens, of which only the template's own may be control tokens. Read
`prompts.py` first, then `template.py` and `control_tokens.py`.
"""
