"""From the images that clients send to files that the engine reads.

Start at request_images.py; fetching.py gets those that are on the web, where the server is allowed to.
"""
