"""Conversations as files: Markdown for reading, JSON for importing again.

Input: conversations; output: text, and vice versa. Read `importing.py` first, which defines the format.
"""
