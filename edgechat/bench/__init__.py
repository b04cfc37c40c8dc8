"""Measures models on this machine: speed, memory, C(n), ways of decoding, and loss due to quantization."""
