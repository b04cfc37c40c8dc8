# Read right after the project() of llama-cpp-python. A normal variable hides the cache's, which the wheel's
# CMake file forces: edgechat uses neither llama.cpp's tools nor its pictures, half of what would be compiled.
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)
