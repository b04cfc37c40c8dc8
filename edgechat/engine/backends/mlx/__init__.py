"""Models run by MLX: mlx-lm's architectures and caches, under the protocol of all backends."""
