"""Requests to the hub over HTTP: connections, ranges and deadlines. Start at transfer.py."""
