"""Chooses which file of which model to load: rates every candidate on this machine and explains the choice.

Candidates and a machine go in; a ranking, a choice and its reasons come out. Read `ranking.py` first.
"""
