"""Foundations for the other packages: errors, folders, safe text, formulas, media, child processes.

This package imports nothing else from edgechat. Read `errors.py` first, then `process/`.
"""
