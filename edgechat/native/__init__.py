"""llama.cpp through ctypes: the only package that imports llama_cpp, and only inside a child process."""
