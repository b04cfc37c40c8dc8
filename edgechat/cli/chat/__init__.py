"""`edgechat run`: a conversation on the command line. Read `chat_loop.py` first."""
