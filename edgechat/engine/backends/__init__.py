"""Backends, which compute logits: llama.cpp and MLX."""
