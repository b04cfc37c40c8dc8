"""What edgechat may reach: the public web, llama.cpp servers on this machine, or nothing at all."""
