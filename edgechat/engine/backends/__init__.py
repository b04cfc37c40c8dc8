"""Backends that compute logits: llama.cpp and MLX."""
