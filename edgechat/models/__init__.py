"""Models: the catalogue, file headers, and the model files on this machine and on the hub."""
