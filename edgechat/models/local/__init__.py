"""Models on this machine, from all tools: finding, naming, importing, verifying and removing them.

Takes folders and typed names; returns files. Read `locations.py` first, then `inventory.py` and `resolve.py`.
"""
