# verbena_optimized(TARGET...): code in which tests spend their time, and code that decodes foreign bytes.
# Under sanitizers it is optimised lightly and everything else not at all (VerbenaOptions.cmake); in
# other builds the same divides what belongs to tests (verbena_quickly_compiled).
function(verbena_optimized)
  foreach(target ${ARGN})
    set_target_properties(${target} PROPERTIES VERBENA_OPTIMIZED ON)
    if(VERBENA_SANITIZE)
      target_compile_options(${target} PRIVATE -O1)
    endif()
    if(VERBENA_SANITIZE STREQUAL "address")
      target_compile_options(${target} PRIVATE -fsanitize=alignment)
    endif()
  endforeach()
endfunction()

# verbena_quickly_compiled(TARGET): part of a test. It runs once; half of its compile time would go
# into optimising it. AddressSanitizer checks its memory by calls, which compile in half the time of
# code in place; undefined behaviour is checked in the linked libraries, not in tests themselves.
function(verbena_quickly_compiled target)
  target_compile_definitions(${target} PRIVATE CATCH_CONFIG_FAST_COMPILE)
  if(VERBENA_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE
      --param=asan-instrumentation-with-call-threshold=0 -fno-sanitize=undefined)
  endif()
  target_compile_options(${target} PRIVATE
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:${target},VERBENA_OPTIMIZED>>>:-O0>)
endfunction()

# verbena_release_only(TARGET...): programs that no test of a sanitizer's build runs. There they are
# built when they are asked for by name.
function(verbena_release_only)
  if(VERBENA_SANITIZE)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# verbena_room(NAME ROOM SOURCES ... LINK ... PRIVATE_LINK ...)
#
# A static library of one room. A room's headers are visible only to targets that link it: each
# room is reached through its own include root (build/include/ROOM/ROOM -> source), so including a
# header of a room that is not linked fails to compile.
function(verbena_room name room)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  verbena_include_root(${room} root)
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${root})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE verbena_options ${ARG_PRIVATE_LINK})
endfunction()

function(verbena_include_root room out)
  set(root ${CMAKE_BINARY_DIR}/include/${room})
  if(NOT EXISTS ${root}/${room})
    file(MAKE_DIRECTORY ${root})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${room} ${root}/${room} SYMBOLIC)
  endif()
  set(${out} ${root} PARENT_SCOPE)
endfunction()

# verbena_test_objects(NAME SOURCES ... LINK ...): sources, of test cases or not, that several
# Catch2 binaries link; compiled once.
function(verbena_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  verbena_include_root(tests root)
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${root})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE verbena_options)
  verbena_quickly_compiled(${name})
endfunction()

# verbena_test_program(NAME SOURCES ... LINK ...): one Catch2 binary.
function(verbena_test_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  verbena_include_root(tests root)
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${root})
  target_link_libraries(${name} PRIVATE verbena_options verbena_catch_main ${ARG_LINK})
  verbena_quickly_compiled(${name})
endfunction()

# tests/run.sh runs three tests at a time: one of those that start processes, have threads or watch the
# clock (they hold the lock "machine"), and two that only compute. These get processors that are
# idle otherwise, so that they do not disturb the first. Tests that emulate whole machines are RUN_SERIAL.
set(VERBENA_WHEN_IDLE ${CMAKE_CURRENT_LIST_DIR}/../tests/support/when_idle.sh)

# verbena_test(NAME SOURCES ... LINK ... [LABELS ...] [TIMEOUT seconds] [COST seconds] [ONE_THREAD]
#              [WHEN_IDLE])
#
# One Catch2 binary, registered with ctest as one test. A long one gets a COST, to be started early:
# about its time under the sanitizer that slows it most. WHEN_IDLE: it only computes. ONE_THREAD: so it
# does, in one thread of ours, which has no races: it is not run under ThreadSanitizer.
function(verbena_test name)
  cmake_parse_arguments(ARG "ONE_THREAD;WHEN_IDLE" "TIMEOUT;COST" "SOURCES;LINK;LABELS" ${ARGN})
  if(ARG_ONE_THREAD AND VERBENA_SANITIZE STREQUAL "thread")
    return()
  endif()
  set(launcher)
  set(timeout 120)
  if(ARG_ONE_THREAD)
    set(ARG_WHEN_IDLE ON)
  endif()
  if(ARG_WHEN_IDLE)
    set(launcher ${VERBENA_WHEN_IDLE})
    set(timeout 900)  # it may stand for minutes
  endif()
  if(ARG_TIMEOUT)
    set(timeout ${ARG_TIMEOUT})
  endif()
  verbena_test_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
  add_test(NAME ${name} COMMAND ${launcher} $<TARGET_FILE:${name}> --use-colour no)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${ARG_LABELS}")
  if(NOT ARG_WHEN_IDLE)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK machine)
  endif()
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# verbena_full_under_sanitizers(TEST...): tests of this folder that a sanitizer's build has for
# tests/run.sh --full alone (VERBENA_FULL). They are long there, and shorter ones reach the same code.
function(verbena_full_under_sanitizers)
  if(NOT VERBENA_SANITIZE OR VERBENA_FULL)
    return()
  endif()
  foreach(name ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS full)
    if(TARGET ${name})
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endforeach()
endfunction()
