# cmake -D FROM=FILE -D TO=FILE -D NAMES=client/client.h=verbena/client.h,... -P PublicHeader.cmake
#
# Writes a public header as users get it: its includes are named as they are installed. An include
# that is not installed is an error: public headers show no more of the project than they name.
file(READ ${FROM} text)
string(REPLACE "," ";" NAMES "${NAMES}")
foreach(pair ${NAMES})
  string(REPLACE "=" ";" pair ${pair})
  list(GET pair 0 here)
  list(GET pair 1 installed)
  string(REPLACE "#include \"${here}\"" "#include \"${installed}\"" text "${text}")
endforeach()
string(REGEX MATCH "#include \"(proto|rdma|shard|client|worker|server)/[^\"]*\"" left "${text}")
if(left)
  message(FATAL_ERROR "${FROM}: ${left}: not a public header (client/package.cmake lists them)")
endif()
file(WRITE ${TO} "${text}")
