"""Embeddings: texts in, vectors out, by models that are made for that."""
