"""LoRA adapters: from a file, or a folder of PEFT's, to a GGUF file that is known to fit a model.

`reading.open_adapter` is the way in: it converts what is not GGUF (`peft.py`) and checks the result against
the model's header before llama.cpp sees it. `local.py` finds the adapters on this machine by their names.
"""
