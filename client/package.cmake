# libverbena, which other programs link, and its CMake package. One set of objects, as a shared
# library that exports only symbols marked VERBENA_EXPORT, and as an archive.

# ---- public headers: client/include/verbena/ as it is, and generated headers ----
set(generated ${CMAKE_BINARY_DIR}/generated)
set(public_root ${CMAKE_CURRENT_SOURCE_DIR}/include ${generated})
install(DIRECTORY include/verbena DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${generated}/verbena/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/verbena)
foreach(message access cluster table)  # those that client.h shows
  install(FILES ${generated}/verbena/v1/${message}.pb.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/verbena/v1)
endforeach()

# ---- the two libraries ----
set(modules verbena_json verbena_messages verbena_services verbena_proto verbena_proto_grpc verbena_rdma
          verbena_codec verbena_client_core verbena_client_runtime verbena_client verbena_client_c)
verbena_objects(objects ${modules})
# Dependencies of the objects and of the public headers.
set(needs gRPC::grpc++ OpenSSL::SSL OpenSSL::Crypto protobuf::libprotobuf absl::any_invocable
          absl::flat_hash_map absl::random_random absl::span absl::status absl::statusor
          absl::str_format absl::strings absl::time PkgConfig::HWLOC Threads::Threads)
set(shows protobuf::libprotobuf absl::status absl::statusor absl::time)

function(verbena_library name type)
  add_library(${name} ${type} ${objects})
  target_include_directories(${name} INTERFACE "$<BUILD_INTERFACE:${public_root}>"
                                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} INTERFACE cxx_std_20)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME verbena LINKER_LANGUAGE CXX)
endfunction()

verbena_library(verbena_shared SHARED)
target_link_libraries(verbena_shared PRIVATE ${needs} INTERFACE ${shows})
set(symbols ${CMAKE_CURRENT_SOURCE_DIR}/libverbena.map)
# Templates of the standard library and inline functions of others have default visibility. The map
# removes them from the library's exports.
target_link_options(verbena_shared PRIVATE -Wl,--version-script=${symbols}
                    $<$<NOT:$<BOOL:${VERBENA_SANITIZE}>>:-Wl,--no-undefined>)
set_target_properties(verbena_shared PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME verbena
  LINK_DEPENDS ${symbols})

verbena_library(verbena_static STATIC)
target_link_libraries(verbena_static INTERFACE ${needs})

# ---- installed ----
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/verbena)
# Separate exports, so that the shared library can be used without the archive's dependencies.
install(TARGETS verbena_shared EXPORT verbena-shared)
install(EXPORT verbena-shared NAMESPACE verbena:: DESTINATION ${package})
install(TARGETS verbena_static EXPORT verbena-static)
install(EXPORT verbena-static NAMESPACE verbena:: DESTINATION ${package})
configure_package_config_file(
  ${CMAKE_SOURCE_DIR}/cmake/verbena-config.cmake.in ${CMAKE_BINARY_DIR}/verbena-config.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# While the major version is 0, a minor release may change interfaces.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/verbena-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/verbena-config.cmake
              ${CMAKE_BINARY_DIR}/verbena-config-version.cmake DESTINATION ${package})
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
configure_file(${CMAKE_SOURCE_DIR}/cmake/verbena.pc.in ${CMAKE_BINARY_DIR}/verbena.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/verbena.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- the programs of README.md, which tests/deploy runs ----
add_executable(verbena_example example/quick_example.cc)
target_link_libraries(verbena_example PRIVATE verbena_options verbena_shared)
add_executable(verbena_example_c example/quick_example.c)
target_link_libraries(verbena_example_c PRIVATE verbena_options verbena_shared)
verbena_release_only(verbena_example verbena_example_c)
