"""The hub: repository listings, model headers read without downloading, and resumable downloads.

Takes names and URLs; returns listings, headers and verified files. Read `names.py` first, then `listing.py`
and `download.py`.
"""
