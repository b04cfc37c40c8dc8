"""The hub: listings of repositories, headers before any download, and resumable downloads.

Takes names and addresses; returns listings, headers and verified files. Read `names.py` first, then
`listing.py` and `download.py`.
"""
