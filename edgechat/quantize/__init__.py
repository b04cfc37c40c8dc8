"""Makes smaller models of those in 16 or 32 bits: of a level, a size or a loss. Read `making.py` first."""
