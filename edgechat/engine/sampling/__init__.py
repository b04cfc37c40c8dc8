"""From a row of logits to a token, and how likely it was. Read `sampler.py` first."""
