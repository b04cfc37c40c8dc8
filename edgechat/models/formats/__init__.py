"""File formats of models: GGUF, and the safetensors of MLX, read by bounded parsers of our own.

In come bytes that nobody trusts; out comes a `ModelHeader`. Read `header.py` first, then `gguf.py`.
"""
