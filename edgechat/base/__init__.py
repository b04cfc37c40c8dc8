"""What every other package stands on: errors, folders and their files, text made harmless, child processes.

It imports nothing else of edgechat. Read `errors.py` first, then `process/`.
"""
