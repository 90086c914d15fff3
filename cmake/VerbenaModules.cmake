# Failpoints (proto/base/failpoint.h) are in no program that is installed. The sources of a module that
# have any are compiled twice, into NAME_clean and NAME_failpoints, and its other sources once, into NAME.
# A target that links NAME gets one of the two: with failpoints if the linked program has the property
# VERBENA_FAILPOINTS, which programs of tests have. CMake refuses a program that would get both.
# Sanitizers' builds are not installed: there everything has failpoints and is compiled once.
#
# verbena_with_failpoints(TARGET...): programs and libraries of tests.
function(verbena_with_failpoints)
  set_target_properties(${ARGN} PROPERTIES VERBENA_FAILPOINTS ON INTERFACE_VERBENA_LINKS_FAILPOINTS ON
                        COMPATIBLE_INTERFACE_BOOL VERBENA_LINKS_FAILPOINTS)
endfunction()

function(verbena_sources_with_failpoints out)
  set(found)
  foreach(source ${ARGN})
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
      file(STRINGS ${source} uses REGEX "VERBENA_FAILPOINT\\(" LIMIT_COUNT 1)
      if(uses)
        list(APPEND found ${source})
      endif()
    endif()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# Both variants of a module. A module and its variant need each other, as archives may.
function(verbena_failpoint_variants name)
  foreach(variant clean failpoints)
    add_library(${name}_${variant} STATIC EXCLUDE_FROM_ALL ${ARGN})
    target_link_libraries(${name}_${variant} PUBLIC ${name} PRIVATE verbena_options)
  endforeach()
  verbena_with_failpoints(${name}_failpoints)
  target_compile_definitions(${name}_failpoints PUBLIC VERBENA_FAILPOINTS=1)
  target_compile_definitions(${name}_clean PRIVATE VERBENA_FAILPOINTS=0)
  set_target_properties(${name}_clean PROPERTIES INTERFACE_VERBENA_LINKS_FAILPOINTS OFF
                        COMPATIBLE_INTERFACE_BOOL VERBENA_LINKS_FAILPOINTS)
  target_link_libraries(${name} INTERFACE
    ${name}_$<IF:$<BOOL:$<TARGET_PROPERTY:VERBENA_FAILPOINTS>>,failpoints,clean>)
endfunction()

# verbena_objects(OUT NAME...): the objects of modules, as they are installed.
function(verbena_objects out)
  set(objects)
  foreach(name ${ARGN})
    list(APPEND objects $<TARGET_OBJECTS:${name}>)
    if(TARGET ${name}_clean)
      list(APPEND objects $<TARGET_OBJECTS:${name}_clean>)
    endif()
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# verbena_optimized(TARGET...): code in which tests spend their time, and code that decodes foreign bytes.
# Under sanitizers it is optimised lightly and everything else not at all (VerbenaOptions.cmake); in
# other builds the same divides the code of tests (verbena_quickly_compiled).
function(verbena_optimized)
  foreach(target ${ARGN})
    if(TARGET ${target}_clean)
      verbena_optimized(${target}_clean ${target}_failpoints)
    endif()
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
  # Without optimization headers are most of it.
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
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

# verbena_ci_program(TARGET...): programs of release tests that tests/run.sh --ci and --nightly run. Elsewhere
# they are built when they are asked for by name.
function(verbena_ci_program)
  if(VERBENA_SANITIZE OR VERBENA_TIER STREQUAL "change")
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# verbena_module(NAME MODULE SOURCES ... LINK ... PRIVATE_LINK ...)
#
# A static library of one module. A module's headers are visible only to targets that link it: each
# module is reached through its own include root (build/include/MODULE/MODULE -> source), so including a
# header of a module that is not linked fails to compile.
function(verbena_module name module)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  verbena_include_root(${module} root)
  verbena_sources_with_failpoints(twice ${ARG_SOURCES})
  if(NOT VERBENA_SANITIZE)
    list(REMOVE_ITEM ARG_SOURCES ${twice} "")
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${root})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE verbena_options ${ARG_PRIVATE_LINK})
  if(twice AND VERBENA_SANITIZE)
    target_compile_definitions(${name} PUBLIC VERBENA_FAILPOINTS=1)
  elseif(twice)
    verbena_failpoint_variants(${name} ${twice})
    foreach(variant clean failpoints)
      target_link_libraries(${name}_${variant} PRIVATE ${ARG_PRIVATE_LINK})
    endforeach()
  endif()
endfunction()

function(verbena_include_root module out)
  set(root ${CMAKE_BINARY_DIR}/include/${module})
  if(NOT EXISTS ${root}/${module})
    file(MAKE_DIRECTORY ${root})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${module} ${root}/${module} SYMBOLIC)
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
  verbena_with_failpoints(${name})
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL PROPERTY VERBENA_SOURCES_OF_${name} ${ARG_SOURCES})
endfunction()

# verbena_test_program(NAME SOURCES ... LINK ...): one Catch2 binary.
function(verbena_test_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  verbena_include_root(tests root)
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${root})
  target_link_libraries(${name} PRIVATE verbena_options verbena_catch_main ${ARG_LINK})
  verbena_quickly_compiled(${name})
  verbena_with_failpoints(${name})
  set_property(GLOBAL APPEND PROPERTY VERBENA_TEST_PROGRAMS ${name})
endfunction()

# tests/run.sh runs five tests at a time: one of those that cause faults, have threads or watch the clock
# (they hold the lock "machine"); one of the others that start a cluster (the lock "clusters"), and one of
# Python, deploy/ and network namespaces (the lock "scripts"), which mostly wait; and those that only
# compute. These get processors that are idle otherwise, so that they do not disturb the others, and two of
# them run at a time (tests/support/idle_processors.json): more would keep the others waiting for a place.
# Tests that emulate whole machines hold all three locks.
set(VERBENA_WHEN_IDLE ${CMAKE_CURRENT_LIST_DIR}/../tests/support/when_idle.sh)

function(verbena_when_idle)
  set_tests_properties(${ARGN} PROPERTIES RESOURCE_GROUPS "1,idle:1")
endfunction()

# verbena_test(NAME SOURCES ... LINK ... [PROGRAM program] [LABELS ...] [TIMEOUT seconds] [COST seconds]
#              [ONE_THREAD] [WHEN_IDLE])
#
# One Catch2 binary, registered with ctest as one test. PROGRAM: a binary that has the sources of several
# tests, which then compile together and link once; each test runs the cases of its own sources (Catch2's
# tags of file names), in a process of its own. A long one gets a COST, to be started early:
# about its time under the sanitizer that slows it most. WHEN_IDLE: it only computes. ONE_THREAD: so it
# does, in one thread of ours, which has no races: it is not run under ThreadSanitizer.
function(verbena_test name)
  cmake_parse_arguments(ARG "ONE_THREAD;WHEN_IDLE" "PROGRAM;TIMEOUT;COST" "SOURCES;LINK;LABELS" ${ARGN})
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
    set(timeout 1800)  # it may stand for minutes
  endif()
  if(ARG_TIMEOUT)
    set(timeout ${ARG_TIMEOUT})
  endif()
  set(program ${name})
  set(cases)
  if(ARG_PROGRAM)
    set(program ${ARG_PROGRAM})
    set(sources ${ARG_SOURCES})
    foreach(library ${ARG_LINK})
      get_property(of_library GLOBAL PROPERTY VERBENA_SOURCES_OF_${library})
      list(APPEND sources ${of_library})
    endforeach()
    foreach(source ${sources})
      file(STRINGS ${source} found REGEX "TEST_CASE" LIMIT_COUNT 1)
      if(found)
        cmake_path(GET source STEM LAST_ONLY stem)
        list(APPEND cases "[#${stem}]~[.]")
      endif()
    endforeach()
    list(JOIN cases "," cases)
    # A test whose cases are not found fails.
    set(cases --filenames-as-tags --warn NoTests ${cases})
  endif()
  set(own_sources ${ARG_SOURCES})
  if(TARGET ${program})
    get_target_property(others ${program} SOURCES)
    list(REMOVE_ITEM ARG_SOURCES ${others})  # sources shared by several tests
    target_sources(${program} PRIVATE ${ARG_SOURCES})
    target_link_libraries(${program} PRIVATE ${ARG_LINK})
  else()
    verbena_test_program(${program} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
  endif()
  add_test(NAME ${name} COMMAND ${launcher} $<TARGET_FILE:${program}> --use-colour no ${cases})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${ARG_LABELS}")
  if(ARG_WHEN_IDLE)
    verbena_when_idle(${name})
  endif()
  verbena_note_sources(${name} ${own_sources})
  foreach(library ${ARG_LINK})
    get_property(of_library GLOBAL PROPERTY VERBENA_SOURCES_OF_${library})
    if(of_library)
      verbena_note_sources(${name} ${of_library})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY VERBENA_TESTS_OF_${program} ${name})
  if("verbena_test_cluster" IN_LIST ARG_LINK AND NOT "faults" IN_LIST ARG_LABELS)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK clusters)
  elseif(NOT ARG_WHEN_IDLE)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK machine)
  endif()
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# verbena_note_sources(TEST SOURCE...): which sources a test runs, for tests/structure/guarantees_test.py
# (verbena_write_test_sources()). verbena_note_hidden(TEST TAG SOURCE): it runs the source's hidden cases with
# that tag.
function(verbena_note_sources name)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_property(GLOBAL APPEND_STRING PROPERTY VERBENA_TEST_SOURCES "${name} ${source}\n")
  endforeach()
endfunction()

function(verbena_note_hidden name tag source)
  verbena_note_sources("${name} ${tag}" ${source})
endfunction()

function(verbena_write_test_sources file)
  get_property(text GLOBAL PROPERTY VERBENA_TEST_SOURCES)
  file(WRITE ${file} "${text}")
endfunction()

# verbena_ci(TEST...), verbena_nightly(TEST...): tests of this folder that only tests/run.sh --ci and
# --nightly, or only the latter, run: they have that label. A program that has no other tests is then built
# with the others in these tiers alone (VERBENA_TIER).
function(verbena_ci)
  verbena_later(ci ${ARGN})
endfunction()

function(verbena_nightly)
  verbena_later(nightly ${ARGN})
endfunction()

# The same in sanitizers' builds alone: tests of code that neither parses, nor allocates, nor crosses threads,
# and long ones where shorter ones reach the same code. Tests that a build does not have are left out.
function(verbena_nightly_under_sanitizers)
  foreach(name ${ARGN})
    if(VERBENA_SANITIZE AND TEST ${name})
      verbena_later(nightly ${name})
    elseif(NOT VERBENA_SANITIZE AND NOT TEST ${name})
      message(FATAL_ERROR "there is no test ${name}")
    endif()
  endforeach()
endfunction()

# The target verbena_tests: the programs of the tests of this tier, and their dependencies. Sanitizers' builds
# need nothing else (tests/run.sh). Called last.
function(verbena_add_tests_target)
  get_property(programs GLOBAL PROPERTY VERBENA_TEST_PROGRAMS)
  get_property(later GLOBAL PROPERTY VERBENA_LATER)
  add_custom_target(verbena_tests)
  foreach(program ${programs})
    get_property(tests GLOBAL PROPERTY VERBENA_TESTS_OF_${program})
    if(NOT tests)
      set(tests ${program})
    endif()
    list(REMOVE_ITEM tests ${later} "")
    if(NOT tests)
      set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    get_target_property(excluded ${program} EXCLUDE_FROM_ALL)
    if(NOT excluded)
      add_dependencies(verbena_tests ${program})
    endif()
  endforeach()
endfunction()

function(verbena_later tier)
  foreach(name ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS ${tier})
    if(NOT VERBENA_TIER STREQUAL "nightly" AND NOT VERBENA_TIER STREQUAL tier)
      set_property(GLOBAL APPEND PROPERTY VERBENA_LATER ${name})
    endif()
  endforeach()
endfunction()
