"""MLX models: folders with config.json, safetensors and a tokenizer, read into a ModelHeader.

MLX itself is not imported here.
"""
