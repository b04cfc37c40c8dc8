"""One model on one machine: the ways of loading it, the one that is chosen, and why.

Input: a header, a machine and a request; output: a LoadPlan. Read `model_on_machine.py` first, then
`plan_model.py`. `programs.py` and `engine_plan.py` plan what other programs run.
"""
