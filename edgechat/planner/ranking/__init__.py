"""Which file of which model: every candidate is rated on this machine, and the choice is explained.

Input: candidates and a machine; output: a ranking, a choice and its reasons. Read `ranking.py` first.
"""
