"""Model file formats: GGUF, and safetensors with MLX's config, read by bounded parsers.

Takes untrusted bytes; returns a `ModelHeader`. Read `header.py` first, then `gguf.py`.
"""
