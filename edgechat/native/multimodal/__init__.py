"""Pictures and sounds for a text model: llama.cpp's libmtmd, which nothing else of edgechat touches.

In comes the RGB of a picture, or the samples of a sound; out come embeddings that stand in place of tokens.
Read projector.py first: its `Projector` cuts a prompt into chunks (chunks.py) and encodes them;
`Context.decode_embeddings` computes them. probe.py asks a child process what a projector is and takes, which
is safe with damaged ones.
"""
