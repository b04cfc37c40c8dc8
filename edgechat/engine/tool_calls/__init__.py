"""Tool calls: a request's tools, the calls in a reply, and both in a chat's history."""
