"""LoRA adapters: GGUF files and PEFT folders, converted and checked against a model.

Start with `peft.open_adapter`: it converts a PEFT folder to GGUF and checks the result against the model's
header (see `reading.py`) before llama.cpp sees it. `local.py` finds adapters by name.
"""
