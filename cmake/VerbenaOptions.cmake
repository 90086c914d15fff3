# Compiler flags every target of the project is built with.
add_library(verbena_options INTERFACE)
target_compile_options(verbena_options INTERFACE
  -Wall -Wextra -Wshadow -Werror
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
  # Kernels give the same bits on every target: no fused multiply-add the source does not ask for.
  -ffp-contract=off -fno-omit-frame-pointer)
find_program(VERBENA_CCACHE ccache)
if(VERBENA_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${VERBENA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${VERBENA_CCACHE})
endif()

# A hundred programs, each with gRPC and all modules: the usual linker takes three times as long.
find_program(VERBENA_LLD ld.lld)
if(VERBENA_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# gcc collects its garbage when its heap has grown by a third; a tenth of the compile time goes there.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:--param=ggc-min-heapsize=500000>)
endif()

# Most of the compiled text is headers: eight sources at once take a third of the time. OFF shows an
# include that is missing (tests/run.sh --nightly).
# So two sources of a target must not define the same name for themselves.
option(VERBENA_UNITY "Compile several sources of a target at once" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
if(VERBENA_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  # There a struct of one .cc that has a member of an unnamed namespace is taken for a header's.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

# The tsan preset covers code below gRPC that has threads: Debian's gRPC and Abseil are not
# instrumented, and report races of their own in a hello-world server.
set(VERBENA_WITH_GRPC ON)
if(VERBENA_SANITIZE STREQUAL "address")
  # gcc 12 with AddressSanitizer sees uninitialised uses inside libstdc++'s <regex>, which Catch2's
  # main() uses.
  # Null pointers end in AddressSanitizer's report of the fault as well; these checks, of every
  # reference there is, were a third of the compile time. Alignment is checked in code that decodes bytes
  # (verbena_optimized(), VerbenaModules.cmake).
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-sanitize=null,vptr,object-size,alignment -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
elseif(VERBENA_SANITIZE STREQUAL "thread")
  # The same of absl::InlinedVector, with ThreadSanitizer.
  add_compile_options(-fsanitize=thread -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=thread)
  set(VERBENA_WITH_GRPC OFF)
elseif(NOT VERBENA_SANITIZE STREQUAL "")
  message(FATAL_ERROR "VERBENA_SANITIZE is '${VERBENA_SANITIZE}'; allowed: address, thread, empty")
endif()
if(VERBENA_SANITIZE)
  # Line tables, and no optimisation: most of a sanitizer's compile time goes into optimising checks
  # of code that runs once. Code that runs long is given to verbena_optimized().
  string(REPLACE "-g" "-g1 -O0" CMAKE_CXX_FLAGS_DEBUG "${CMAKE_CXX_FLAGS_DEBUG}")
else()
  # -g1: line tables for profiles and backtraces without the size of full debug information.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
endif()
