"""Sounds from users: untrusted files, decoded in a child process, stored by their contents.

Start at decoding.py, which asks; decoding_child.py answers.
"""
