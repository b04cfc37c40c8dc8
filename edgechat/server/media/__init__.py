"""From the images and sounds that clients send to files that the engine reads.

Start at request_media.py; senses.py says which models take them; fetching.py gets images that are on the web,
where the server is allowed to.
"""
