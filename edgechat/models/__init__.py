"""Models: the catalogue, headers, and files on this machine and on the hub."""
