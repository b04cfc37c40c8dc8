"""What computes logits: llama.cpp and MLX."""
