"""The models on this machine, of all tools: found, named, imported, verified and removed.

Takes folders and typed names; returns files. Read `locations.py` first, then `inventory.py` and `resolve.py`.
"""
