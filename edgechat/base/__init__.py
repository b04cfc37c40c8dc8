"""Foundations of the other packages: errors, folders, safe text, formulas, media, child processes.

It imports nothing else of edgechat. Read `errors.py` first, then `process/`.
"""
