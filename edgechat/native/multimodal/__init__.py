"""Images and audio for a text model, through llama.cpp's libmtmd, which is used only here.

Takes an image's RGB values or a sound's samples, and returns embeddings to decode in place of tokens. Read
projector.py first: a `Projector` cuts an image or sound into chunks and encodes them, and
`Context.decode_embeddings` decodes the result. probe.py examines projectors, even damaged ones, in a child
process.
"""
