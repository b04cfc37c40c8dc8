"""Conversations as files: Markdown for people, JSON to be read again.

In come conversations, out come texts, and the other way about. Read `format.py` first.
"""
