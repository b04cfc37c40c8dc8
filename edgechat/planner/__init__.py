"""Planner: makes a LoadPlan from a request, a model's header and this machine, and explains its decisions.

    estimate/      how much memory a load takes, and how fast it is
    placement/     the plan for one file: context, cache, layers, threads
    ranking/       which file of which model to load, and what to download
    prepare.py     from a model's name to the plan for loading it
    fallback.py    what to change if there is not enough memory

Read `request.py` (the input) and `plan.py` (the output) first, then `placement/model_on_machine.py`.
"""
