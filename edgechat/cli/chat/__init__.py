"""`edgechat run`: conversations on the command line. Read `loop.py` first."""
