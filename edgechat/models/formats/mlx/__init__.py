"""MLX models: a folder with config.json, safetensors and a tokenizer, read into the header that plans go by.

Nothing of MLX itself is imported here.
"""
