"""What computes logits: llama.cpp, and a scripted stand-in for tests."""
