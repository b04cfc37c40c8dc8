"""llama.cpp, called through ctypes. Only this package imports llama_cpp, and only in child processes.

llama.cpp's threads meet at a barrier several hundred times per token, where GNU OpenMP spins for a
millisecond or more. When another program takes a core, the waiting threads keep their cores busy for nothing:
next to a busy process, a 1B model ran at a quarter of its speed (benchmarks/busy.py). A short spin followed
by sleep costs nothing on an idle machine. OpenMP reads GOMP_SPINCOUNT when it is loaded, so it is set here.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# When two threads abort at once, the debuggers that ggml starts wait for each other forever and keep our
# pipes open.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
