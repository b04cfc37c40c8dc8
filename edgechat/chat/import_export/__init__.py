"""Conversations as files: Markdown for reading, JSON for importing again.

Converts conversations to text, and text to conversations. Read `importing.py` first: it defines the format.
"""
