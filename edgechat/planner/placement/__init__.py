"""Decides how to load a given model on a given machine, and explains why.

A header, a machine and a request go in; a LoadPlan comes out. Read `model_on_machine.py` first, then
`plan_model.py`. `programs.py` and `engine_plan.py` plan models that other programs run.
"""
