"""Models: the catalogue, headers, files on this machine and on the hub."""
