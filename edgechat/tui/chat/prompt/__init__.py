"""The prompt: writing a question, attaching files, and completions.

It turns keys and pastes into a question with attachments, or into a command. Read `box.py` first.
"""
