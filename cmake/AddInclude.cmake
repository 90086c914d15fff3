# cmake -D HEADER=FILE.pb.h -D INCLUDE=verbena/export.h -P AddInclude.cmake
#
# Adds an include to a header that protoc wrote, where protoc leaves room for it: the macro named by
# its dllexport_decl must be known there.
set(point "// @@protoc_insertion_point(includes)")
file(READ ${HEADER} text)
string(FIND "${text}" "${point}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "${HEADER}: no line ${point}")
endif()
string(REPLACE "${point}" "#include \"${INCLUDE}\"\n${point}" text "${text}")
file(WRITE ${HEADER} "${text}")
