"""Measuring what a quantization costs: perplexity, and the divergence from another model's predictions.

divergence.py   from logits to figures
base_file.py    llama.cpp's files of a base's predictions
score_file.py   what has been measured so far
text.py         the text
child.py        the measurement, in a process of its own
selection.py    which models are measured, and against what
measuring.py    the front end's side
report.py       tables, plots and JSON
"""
