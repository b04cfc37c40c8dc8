"""Which file of which model: every candidate is scored on this machine, and the choice is explained.

In come candidates and a machine; out come a ranking, a choice and its reasons. Read `candidates.py` first,
then `scoring.py`, `ranked_file.py` and `ranking.py`; `survey.py` and `pulling.py` are what users ask for.
"""
