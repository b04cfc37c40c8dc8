"""Workers reached through a real ssh to this machine, and slow links to them."""
