"""Measures models on this machine: speeds, memory, C(n), ways of drafting, and what quantizations lose."""
