"""The models on this machine, whoever put them there: found, named, imported, verified and removed.

In come folders and what a person typed; out come files. Read `locations.py` first, then `inventory.py` and
`resolve.py`.
"""
