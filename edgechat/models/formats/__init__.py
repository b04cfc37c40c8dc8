"""Model file formats: GGUF, and safetensors with an MLX config, read by parsers with strict limits.

Takes untrusted bytes; returns a `ModelHeader`. Read `header.py` first, then `gguf.py`.
"""
