"""What every other package builds on: errors, folders, harmless text, formulas, media, child processes.

It imports nothing else of edgechat. Read `errors.py` first, then `process/`.
"""
