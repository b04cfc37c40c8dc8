"""Measures models on this machine: speed, memory, C(n), ways of decoding, and the loss from quantization."""
