"""Tool calls: the tools of a request, the calls in a reply, and both in the history of a chat."""
