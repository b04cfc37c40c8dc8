"""Files that hold what users keep: images and sounds by their hash, and SQLite on disks that take nothing."""
