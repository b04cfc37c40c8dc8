"""LoRA adapters: from a file, or a folder of PEFT's, to a GGUF file that is known to fit a model.

`opening.open_adapter` is the way in: it converts what is not GGUF (`peft.py`) and checks the result against
the model's header (`reading.py`) before llama.cpp sees it. `local.py` finds adapters by their names.
"""
