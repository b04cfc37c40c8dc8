"""What the commands do, a file for each. Their options are declared in the files beside this folder."""
