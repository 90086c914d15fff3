# The daemon.

# The coordinator's state on disk.
verbena_room(verbena_server_store server
  SOURCES coordinator/sqlite.cc coordinator/sqlite_store.cc coordinator/state_directory.cc
  LINK verbena_coordinator
  PRIVATE_LINK PkgConfig::SQLITE3 PkgConfig::XXHASH)

# What makes verbenad of them: gRPC services, metrics, command line, threads.
verbena_room(verbena_server server
  SOURCES
    cli/options.cc cli/toml_config.cc
    control/address.cc control/cluster_service.cc control/grpc_server.cc
    control/membership_machine.cc control/shard_service.cc control/shard_set.cc
    metrics/http_server.cc metrics/metrics.cc
    node.cc
  LINK verbena_server_core verbena_server_store verbena_driver verbena_proto_grpc
  PRIVATE_LINK gRPC::grpc++_reflection PkgConfig::SPDLOG prometheus-cpp::core
    civetweb::civetweb-cpp)

add_executable(verbenad main.cc)
target_link_libraries(verbenad PRIVATE verbena_options verbena_server PkgConfig::SPDLOG)
set_target_properties(verbenad PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
install(TARGETS verbenad RUNTIME)
