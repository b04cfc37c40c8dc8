"""The hub: repository listings, model headers read before downloading, and resumable downloads.

Takes names and addresses; returns listings, headers and verified files. Read `names.py` first, then
`listing.py` and `download.py`.
"""
