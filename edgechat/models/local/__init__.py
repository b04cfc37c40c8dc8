"""The models on this machine, of all tools: found, named, imported, verified and removed.

Folders and typed names come in, files go out. Read `locations.py` first, then `inventory.py` and
`resolve.py`.
"""
