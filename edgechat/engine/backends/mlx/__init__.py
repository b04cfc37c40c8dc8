"""MLX backend: mlx-lm's architectures and caches behind the backend protocol."""
