# Targets that need the CUDA toolkit, where there is one: the GPU kernels of a worker, compiled by nvcc, and
# a check of our declarations of the driver against the toolkit's, and a worker's ranges for profilers
# (NVTX). Nothing else does: the driver is looked for when a program runs, so all builds reach memory
# of GPUs. CMake's own CUDA language is not used, as it would want a runtime library and a device to
# link for.
option(VERBENA_CUDA "Compile the GPU kernels and ranges for profilers, and check the driver's declarations, where CUDA is found" ON)
# A device runs code of its own architecture and of earlier ones with the same first digits (8.0 on
# 8.6); later ones compile the PTX, which is that of the last.
set(VERBENA_CUDA_ARCHITECTURES 80 90 100)

set(VERBENA_NVCC_FOUND OFF)
if(VERBENA_CUDA)
  find_program(VERBENA_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin
               DOC "The compiler of the GPU kernels")
  set(missing "there is no nvcc in CUDA_HOME, /usr/local/cuda or PATH")
  if(VERBENA_NVCC)
    set(missing "")
    execute_process(COMMAND ${VERBENA_NVCC} --list-gpu-arch
                    OUTPUT_VARIABLE known ERROR_VARIABLE known RESULT_VARIABLE failed)
    foreach(architecture ${VERBENA_CUDA_ARCHITECTURES})
      if(failed OR NOT known MATCHES "compute_${architecture}\n")
        set(missing "${VERBENA_NVCC} knows no compute_${architecture} (CUDA 12.8 and later do)")
      endif()
    endforeach()
  endif()
else()
  set(missing "VERBENA_CUDA is OFF")
endif()
if(missing)
  message(STATUS "GPU kernels: not compiled, as ${missing}")
else()
  set(VERBENA_NVCC_FOUND ON)
  message(STATUS "GPU kernels: compiled by ${VERBENA_NVCC}")
endif()

set(VERBENA_CUDA_FOUND OFF)
set(VERBENA_NVTX_FOUND OFF)  # ranges for profilers: headers that come with it
if(VERBENA_CUDA)
  find_path(VERBENA_CUDA_INCLUDE cuda.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
    PATH_SUFFIXES include targets/x86_64-linux/include targets/sbsa-linux/include)
  if(VERBENA_CUDA_INCLUDE)
    set(VERBENA_CUDA_FOUND ON)
    if(EXISTS ${VERBENA_CUDA_INCLUDE}/nvtx3/nvToolsExt.h)
      set(VERBENA_NVTX_FOUND ON)
    endif()
  endif()
endif()

# verbena_kernel_image(OUT SOURCE ROOT...): one fat binary of SOURCE, whose includes are found in the
# include roots of these modules. OUT becomes its path.
function(verbena_kernel_image out source)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  set(flags --fatbin -std=c++20 -O3 -lineinfo
      # The CPU's bits: no contraction. Functions of proto/ that are constexpr run on the device too.
      --fmad=false --expt-relaxed-constexpr
      # Warnings are errors here too, and so is a kernel that spills registers: it is as slow as its
      # local memory.
      -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow,-Werror
      -Xptxas --warn-on-spills,--warn-on-local-memory-usage
      # A test looks into it.
      --no-compress
      -ccbin ${CMAKE_CXX_COMPILER})
  foreach(architecture ${VERBENA_CUDA_ARCHITECTURES})
    list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET VERBENA_CUDA_ARCHITECTURES -1 newest)
  list(APPEND flags -gencode arch=compute_${newest},code=compute_${newest})
  foreach(module ${ARGN})
    verbena_include_root(${module} root)
    list(APPEND flags -I ${root})
  endforeach()
  list(APPEND flags -I ${CMAKE_SOURCE_DIR}/client/include)
  add_custom_command(
    OUTPUT ${image}
    COMMAND ${VERBENA_NVCC} ${flags} -MD -MF ${image}.d -MT ${image} -o ${image} ${source}
    MAIN_DEPENDENCY ${source}
    DEPFILE ${image}.d
    COMMENT "Compiling GPU kernels"
    VERBATIM)
  set(${out} ${image} PARENT_SCOPE)
endfunction()
