"""File formats of models: GGUF, and the safetensors of MLX, read by bounded parsers of our own.

Untrusted bytes come in; a `ModelHeader` goes out. Read `header.py` first, then `gguf.py`.
"""
