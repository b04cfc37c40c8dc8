"""Plans of models that another program runs, which edgechat starts.

Input: a model of safetensors, or the plan of a GGUF file; output: a LoadPlan with the command line that
starts the program. Read `engine_plan.py` first.
"""
