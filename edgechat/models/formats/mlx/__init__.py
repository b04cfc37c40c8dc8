"""MLX models: a folder with config.json, safetensors and a tokenizer, read into a ModelHeader.

Nothing of MLX itself is imported here.
"""
