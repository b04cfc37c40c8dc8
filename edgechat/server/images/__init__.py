"""From the images that clients send to files that the engine reads."""
