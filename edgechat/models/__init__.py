"""What could run: the catalogue, GGUF headers, and the files on this machine."""
