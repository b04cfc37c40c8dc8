"""Images and audio for a text model, through llama.cpp's libmtmd, which is used only here.

Takes an image's RGB or a sound's samples, and returns embeddings to be decoded in place of tokens. Read
projector.py first: a `Projector` cuts a prompt into chunks and encodes them, and `Context.decode_embeddings`
computes them. probe.py examines projectors, even damaged ones, in a child process.
"""
