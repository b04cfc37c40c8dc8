# Read right after the project() of llama-cpp-python. A normal variable hides the cache's, which the wheel's
# CMake file forces: edgechat uses none of what llama.cpp's tools share, a third of what would be compiled, and
# shows models no videos, for which libmtmd would run ffmpeg.
set(LLAMA_BUILD_COMMON OFF)
set(MTMD_VIDEO OFF)
