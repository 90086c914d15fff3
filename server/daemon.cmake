# The daemon.

# The coordinator's state on disk.
verbena_module(verbena_server_store server
  SOURCES coordinator/sqlite.cc coordinator/sqlite_entries.cc coordinator/sqlite_store.cc coordinator/state_directory.cc
  LINK verbena_coordinator
  PRIVATE_LINK PkgConfig::SQLITE3 PkgConfig::XXHASH)

# The coordinator's state in etcd, and the election of a leader by it. The messages and calls are etcd's.
set(etcd_sources)
foreach(p etcd stored_state)
  set(out ${CMAKE_BINARY_DIR}/generated/etcd/${p})
  set(made ${out}.pb.cc ${out}.pb.h)
  set(services)
  if(p STREQUAL "etcd")
    list(APPEND made ${out}.grpc.pb.cc ${out}.grpc.pb.h)
    set(services --grpc_out=${CMAKE_BINARY_DIR}/generated --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN})
  endif()
  add_custom_command(
    OUTPUT ${made}
    COMMAND protobuf::protoc --proto_path=${CMAKE_SOURCE_DIR}/proto
            --cpp_out=${CMAKE_BINARY_DIR}/generated ${services} ${CMAKE_SOURCE_DIR}/proto/etcd/${p}.proto
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/etcd/${p}.proto ${CMAKE_SOURCE_DIR}/proto/verbena/v1/cluster.proto)
  list(APPEND etcd_sources ${made})
endforeach()
add_library(verbena_etcd_messages STATIC ${etcd_sources})
set_target_properties(verbena_etcd_messages PROPERTIES UNITY_BUILD OFF)
target_link_libraries(verbena_etcd_messages PUBLIC verbena_messages gRPC::grpc++)
verbena_module(verbena_etcd server
  SOURCES coordinator/etcd/elected_office.cc coordinator/etcd/etcd_client.cc coordinator/etcd/etcd_store.cc
    coordinator/etcd/leader_election.cc coordinator/etcd/lease_watch.cc
    coordinator/etcd/stored_entries.cc
  LINK verbena_coordinator verbena_etcd_messages verbena_proto_grpc
  PRIVATE_LINK absl::random_random PkgConfig::XXHASH Threads::Threads)
verbena_module(verbena_etcd_options server SOURCES cli/etcd_options.cc LINK verbena_etcd)

# Rows that are not in memory.
verbena_module(verbena_cold server
  SOURCES cold/cold_directory.cc cold/rocks_store.cc
  LINK verbena_shard
  PRIVATE_LINK PkgConfig::ROCKSDB Threads::Threads)

# The parts of verbenad around them: gRPC services, metrics, command line, threads.
verbena_module(verbena_server server
  SOURCES
    access/access_control.cc access/audit_log.cc access/budget.cc access/gate.cc access/grpc_log.cc access/peer_log.cc
    access/scope.cc
    cli/network_options.cc cli/options.cc
    control/address.cc control/cluster_service.cc control/control_port.cc control/grpc_server.cc
    control/membership_task.cc control/shard_service.cc control/shard_set.cc
    metrics/http_server.cc metrics/metrics.cc metrics/shard_metrics.cc
    free_heap.cc log/line_sink.cc memory_limit.cc node.cc node_access.cc node_coordinator.cc node_limits.cc
    node_state.cc node_transports.cc
  LINK verbena_cold verbena_balance verbena_checkpoint_tasks verbena_etcd_options verbena_server_core verbena_server_store verbena_driver verbena_proto_grpc verbena_json
    verbena_toml
  PRIVATE_LINK gRPC::grpc++_reflection PkgConfig::SPDLOG prometheus-cpp::core)

add_executable(verbenad main.cc)
target_link_libraries(verbenad PRIVATE verbena_options verbena_server PkgConfig::SPDLOG)
set_target_properties(verbenad PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
install(TARGETS verbenad RUNTIME)

# verbena, the operator's program: calls a cluster over its control plane, for `verbena table` as a
# worker over the data plane, and shares no state with the daemon.
verbena_module(verbena_cli server
  SOURCES
    cli/verbena/checkpoint_cluster.cc cli/verbena/checkpoint_command.cc
    cli/verbena/checkpoint_import.cc cli/verbena/checkpoint_progress.cc
    cli/verbena/newest_checkpoint.cc
    cli/verbena/checkpoint_report.cc
    cli/verbena/cluster_reader.cc cli/verbena/command_line.cc cli/verbena/coordinator_call.cc
    cli/verbena/coordinator_command.cc
    cli/verbena/health.cc cli/verbena/json_fields.cc cli/verbena/json_report.cc cli/verbena/limits.cc
    cli/verbena/move_command.cc cli/verbena/move_leader.cc cli/verbena/move_progress.cc cli/verbena/option_reference.cc
    cli/verbena/partition_report.cc cli/verbena/protocol_report.cc cli/verbena/rebalance_command.cc cli/verbena/repair_command.cc
    cli/verbena/rolling_restart.cc cli/verbena/scale_hint.cc cli/verbena/seen_coordinator.cc
    cli/verbena/shard_load.cc cli/verbena/spec_report.cc cli/verbena/table_command.cc cli/verbena/table_set.cc
    cli/verbena/table_tensor.cc cli/verbena/text_report.cc cli/verbena/text_table.cc cli/verbena/token_command.cc
    cli/verbena/format.cc
  LINK verbena_balance verbena_checkpoint_tasks verbena_checkpoint verbena_client verbena_etcd_options verbena_server_store verbena_shard
       verbena_proto verbena_proto_grpc verbena_json verbena_toml absl::str_format absl::time)
target_compile_definitions(verbena_cli PRIVATE VERBENA_VERSION="${PROJECT_VERSION}")

add_executable(verbena_program cli/verbena/main.cc)
target_link_libraries(verbena_program PRIVATE verbena_options verbena_cli verbena_proto_grpc)
set_target_properties(verbena_program PROPERTIES
  OUTPUT_NAME verbena RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
install(TARGETS verbena_program RUNTIME)
