"""What will fit: from a request, a model's header and this machine to a LoadPlan with its reasons.

    estimate/      what a load takes of memory, and how fast it is
    placement/     the plan of one file: context, cache, layers, threads
    ranking/       which file of which model, and what to download
    prepare.py     from a name to the plan of what is loaded
    fallback.py    what to do with less memory

Read `request.py` and `plan.py` first, which say what goes in and what comes out, then
`placement/model_on_machine.py`.
"""
