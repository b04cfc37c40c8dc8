# Read right after the project() of llama-cpp-python. A normal variable hides the cache's, which the wheel's
# CMake file forces: edgechat uses none of what llama.cpp's tools share, a third of what would be compiled, and
# shows models no videos, for which libmtmd would run ffmpeg.
set(LLAMA_BUILD_COMMON OFF)
set(MTMD_VIDEO OFF)

# Called when all targets exist. What computes, ggml, is compiled as llama.cpp wants it. The rest builds graphs and
# reads files, and takes as long to run with -O1, but half as long to compile with headers that are compiled once.
function(edgechat_compile)
  set(vendor ${CMAKE_SOURCE_DIR}/vendor/llama.cpp)
  if(NOT MSVC)
    foreach(target llama mtmd)
      if(TARGET ${target})
        target_compile_options(${target} PRIVATE -O1)
        target_precompile_headers(${target} PRIVATE
          <algorithm> <array> <cassert> <cinttypes> <cmath> <cstring> <functional> <limits> <map> <memory> <mutex>
          <numeric> <random> <regex> <set> <sstream> <stdexcept> <string> <thread> <unordered_map> <vector>)
      endif()
    endforeach()
    set_source_files_properties(
      ${vendor}/ggml/src/gguf.cpp ${vendor}/ggml/src/ggml-backend-meta.cpp ${vendor}/ggml/src/ggml-opt.cpp
      TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS -O1)
    if(TARGET mtmd)  # these two compute; GCC dies of headers that were compiled with another -O
      set_source_files_properties(${vendor}/tools/mtmd/mtmd-image.cpp ${vendor}/tools/mtmd/mtmd-audio.cpp
        TARGET_DIRECTORY mtmd PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endif()
  # To GCC before 13 AMX's tile configuration looks as if only its first eight bytes were read: it drops the rest,
  # and the process dies of the first product (llama.cpp's pull request 26954). These two keep all of it.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    set_source_files_properties(${vendor}/ggml/src/ggml-cpu/amx/mmq.cpp
      TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS "-fno-tree-dse;-fno-dse")
  endif()
endfunction()
cmake_language(DEFER CALL edgechat_compile)
