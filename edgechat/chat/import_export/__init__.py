"""Conversations as files: Markdown for people, JSON to be read again.

Input: conversations; output: texts; and the reverse. Read `importing.py` first, which has the format.
"""
