"""llama.cpp through ctypes: the only package that imports llama_cpp, and only inside a child process.

Its threads meet at a barrier some hundred times a token. GNU OpenMP spins there for a millisecond and more,
so a thread that waits for one whose core another program has taken keeps its own core busy for nothing:
beside a busy process a 1B model fell to a quarter of its speed (benchmarks/busy.py). A short spin, then
sleep, costs nothing on an idle machine. OpenMP reads the variable when it is loaded, hence here.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# When two threads abort at once, ggml's debuggers wait for each other for ever and hold our pipes.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
