"""Pictures for a text model: llama.cpp's libmtmd, which nothing else of edgechat touches.

In comes the RGB of a picture, out come embeddings that stand in place of tokens. Read projector.py first: its
`Projector` cuts a prompt into chunks (chunks.py) and encodes those of pictures; `Context.decode_embeddings`
computes them. probe.py asks a child process what a file is and what it takes: it is safe with damaged ones.
"""
