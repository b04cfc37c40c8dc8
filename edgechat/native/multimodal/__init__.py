"""Pictures and sounds for a text model, through llama.cpp's libmtmd, which is used only here.

Takes the RGB of a picture or the samples of a sound; returns embeddings to be decoded in place of tokens.
Read projector.py first: a `Projector` cuts a prompt into chunks and encodes them, and
`Context.decode_embeddings` computes them. probe.py examines projectors, even damaged ones, in a child.
"""
