"""Quantization by llama.cpp: of files, of single tensors, and what shows how much a tensor matters.

writing.py     a file from another one, or only the types that its tensors would get
rounding.py    what is left of weights after a type
tensors.py     ggml's tensors while a model computes: their names, operations and numbers
importance.py  the importance matrix: squared sums of the inputs of each matrix multiplication
reading.py     a model that reads a text in chunks
"""
