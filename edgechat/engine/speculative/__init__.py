"""Speculative decoding that never loses: drafts of the next tokens, verified by one call of the target.

*_drafter.py    what drafts: a small model, the model's own layers, or the conversation's own n-grams
acceptance.py   how often they stand, by position and confidence
step_cost.py    what a call of n tokens costs
controller.py   how many tokens are worth drafting now, zero included
speculation.py  all of it around the engine's step: which tokens stand, with the target's distribution kept
learned.py      what was learnt, saved for the next time
"""
