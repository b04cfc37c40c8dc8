"""The prompt: where a question is written, what is attached to it, and what completes it.

In come keys and pastes; out goes a question with its attachments, or a command. Read `box.py` first.
"""
