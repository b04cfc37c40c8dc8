"""The hub: listings of repositories, headers before any download, and resumable downloads.

In come names and addresses; out come listings, headers and verified files. Read `names.py` first, then
`listing.py` and `download.py`.
"""
