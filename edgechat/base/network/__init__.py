"""What edgechat is allowed to reach: the public web, llama.cpp servers on this machine, or nothing at all."""
