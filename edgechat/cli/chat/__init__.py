"""`edgechat run`: a conversation on the command line. Read `loop.py` first."""
