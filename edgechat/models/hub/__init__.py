"""The hub: what a repository has, headers before any download, and downloads that go on where they stopped.

In come names and addresses; out come listings, headers and verified files. Read `names.py` first, then
`listing.py` and `download.py`.
"""
