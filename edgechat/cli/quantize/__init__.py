"""`edgechat quantize`: from a model in 16 or 32 bits to one of a level, of a size, or of a loss.

command.py       the command and its report
making.py        the front end's side: one step after the other, until the file has its name
steps.py         the steps, each of which a child process takes
child.py         that process
sensitivity.py   how much each tensor matters: measured by rounding it in a loaded model
allocation.py    which tensor gets which type
levels.py        the mixtures that llama.cpp knows
source.py        the source's weights
imatrix_file.py  importance matrices as files
"""
