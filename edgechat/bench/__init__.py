"""Benchmarks of models on this machine: speed, memory use, C(n), ways of decoding, and quantization loss."""
