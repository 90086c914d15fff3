// Version, errors, and clients.
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "client/c/handles.h"

namespace verbena::c_api {
namespace {

thread_local std::string last_error;

// The sizes of the structs in release 0.1, which ended with these fields.
constexpr size_t kConnectOptionsFirst =
    offsetof(verbena_connect_options, rdma_relaxed_ordering) + sizeof(int32_t);
constexpr size_t kClientInfoFirst = offsetof(verbena_client_info, live_workers) + sizeof(uint32_t);
constexpr size_t kStatisticsFirst = offsetof(verbena_statistics, staged_bytes) + sizeof(uint64_t);

verbena_connect_options DefaultOptions() {
  const ClientOptions from;
  verbena_connect_options options = {};
  options.expected_workers = from.expected_workers;
  options.max_workers = from.max_workers;
  options.rank = from.rank;
  options.timeout_ms = absl::ToInt64Milliseconds(from.timeout);
  options.staging_bytes = from.staging_bytes;
  options.rdma_gid_index = from.rdma.gid_index;
  options.rdma_traffic_class = from.rdma.traffic_class;
  options.rdma_service_level = from.rdma.service_level;
  options.rdma_path_mtu = from.rdma.path_mtu;
  options.rdma_timeout = from.rdma.timeout;
  options.rdma_retries = from.rdma.retries;
  options.rdma_memory_windows = from.rdma.memory_windows;
  options.rdma_relaxed_ordering = from.rdma.relaxed_ordering;
  options.rdma_gpu_direct = static_cast<int32_t>(from.rdma.gpu_direct);
  return options;
}

void SetText(const char* from, std::string* to) {
  if (from != nullptr) *to = from;
}

absl::Status ReadOptions(const verbena_connect_options& given, ClientOptions* to) {
  verbena_connect_options from = DefaultOptions();
  if (absl::Status s = ReadSized("verbena_connect", "verbena_connect_options", given,
                                 kConnectOptionsFirst, &from);
      !s.ok()) {
    return s;
  }
  if (from.progress != VERBENA_PROGRESS_BACKGROUND && from.progress != VERBENA_PROGRESS_CALLER) {
    return absl::InvalidArgumentError(absl::StrCat("verbena_connect: progress is ", from.progress,
                                                   "; allowed: 0 (background), 1 (caller)"));
  }
  if (from.rdma_gpu_direct < VERBENA_GPU_DIRECT_AUTO ||
      from.rdma_gpu_direct > VERBENA_GPU_DIRECT_REQUIRED) {
    return absl::InvalidArgumentError(absl::StrCat("verbena_connect: rdma_gpu_direct is ",
                                                   from.rdma_gpu_direct,
                                                   "; allowed: 0 (auto), 1 (off), 2 (required)"));
  }
  SetText(from.cluster, &to->cluster);
  SetText(from.job, &to->job);
  SetText(from.name, &to->name);
  SetText(from.transport, &to->transport);
  to->expected_workers = from.expected_workers;
  to->max_workers = from.max_workers;
  to->rank = from.rank;
  to->observer = from.observer != 0;
  to->progress = from.progress == VERBENA_PROGRESS_CALLER ? ClientOptions::Progress::kCaller
                                                          : ClientOptions::Progress::kBackground;
  to->timeout = absl::Milliseconds(from.timeout_ms);
  to->staging_bytes = from.staging_bytes;
  SetText(from.rdma_device, &to->rdma.device);
  SetText(from.rdma_address, &to->rdma.address);
  to->rdma.gid_index = from.rdma_gid_index;
  to->rdma.traffic_class = from.rdma_traffic_class;
  to->rdma.service_level = from.rdma_service_level;
  to->rdma.path_mtu = from.rdma_path_mtu;
  to->rdma.timeout = from.rdma_timeout;
  to->rdma.retries = from.rdma_retries;
  to->rdma.memory_windows = from.rdma_memory_windows != 0;
  to->rdma.relaxed_ordering = from.rdma_relaxed_ordering != 0;
  to->rdma.gpu_direct = static_cast<GpuDirectUse>(from.rdma_gpu_direct);
  SetText(from.ofi_provider, &to->fabric.provider);
  SetText(from.ofi_address, &to->fabric.address);
  SetText(from.tls_ca, &to->tls.ca);
  SetText(from.tls_cert, &to->tls.cert);
  SetText(from.tls_key, &to->tls.key);
  SetText(from.token_file, &to->token_file);
  return absl::OkStatus();
}

}  // namespace

verbena_status Report(verbena_status code, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();  // only the code is returned
  }
  return code;
}

verbena_status Report(const absl::Status& status) noexcept {
  if (status.ok()) return VERBENA_OK;
  try {
    last_error.assign(status.message().data(), status.message().size());
  } catch (...) {
    last_error.clear();
  }
  const int code = static_cast<int>(status.code());
  return code <= VERBENA_UNAUTHENTICATED ? static_cast<verbena_status>(code) : VERBENA_UNKNOWN;
}

}  // namespace verbena::c_api

using verbena::c_api::CheckSize;
using verbena::c_api::Guarded;
using verbena::c_api::NullArgument;

extern "C" {

const char* verbena_version(void) { return VERBENA_VERSION_STRING; }

const char* verbena_status_name(int32_t status) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  return status < 0 || status > VERBENA_UNAUTHENTICATED ? "?" : kNames[status];
}

const char* verbena_last_error(void) { return verbena::c_api::last_error.c_str(); }

void verbena_connect_options_init(verbena_connect_options* options, size_t struct_size) {
  verbena::c_api::Initialize(verbena::c_api::DefaultOptions(), struct_size, options);
}

verbena_status verbena_connect(const verbena_connect_options* options, verbena_client** client) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("verbena_connect", "client");
    *client = nullptr;
    if (options == nullptr) return NullArgument("verbena_connect", "options");
    verbena::ClientOptions read;
    if (absl::Status s = verbena::c_api::ReadOptions(*options, &read); !s.ok()) return s;
    auto handle = std::make_unique<verbena_client>();
    auto made = verbena::Client::Connect(read);
    if (!made.ok()) return made.status();
    handle->client = *std::move(made);
    *client = handle.release();
    return absl::OkStatus();
  });
}

verbena_status verbena_close(verbena_client* client) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("verbena_close", "client");
    client->client->Close();
    return absl::OkStatus();
  });
}

void verbena_client_free(verbena_client* client) { delete client; }

verbena_status verbena_client_get_info(const verbena_client* client, verbena_client_info* info) {
  constexpr char kCall[] = "verbena_client_get_info";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (info == nullptr) return NullArgument(kCall, "info");
    if (absl::Status s = CheckSize(kCall, "verbena_client_info", info->struct_size,
                                   verbena::c_api::kClientInfoFirst);
        !s.ok()) {
      return s;
    }
    verbena_client_info filled = {};
    const verbena::JobRun run = client->client->run();
    filled.incarnation = run.incarnation;
    filled.rank = client->client->rank();
    filled.live_workers = run.live_workers;
    verbena::c_api::WriteSized(filled, info);
    return absl::OkStatus();
  });
}

verbena_status verbena_client_get_statistics(const verbena_client* client,
                                             verbena_statistics* statistics) {
  constexpr char kCall[] = "verbena_client_get_statistics";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (statistics == nullptr) return NullArgument(kCall, "statistics");
    if (absl::Status s = CheckSize(kCall, "verbena_statistics", statistics->struct_size,
                                   verbena::c_api::kStatisticsFirst);
        !s.ok()) {
      return s;
    }
    const verbena::ClientStatistics from = client->client->statistics();
    verbena_statistics filled = {};
    filled.bytes_pushed = from.bytes_pushed;
    filled.bytes_pulled = from.bytes_pulled;
    filled.pushes = from.pushes;
    filled.pulls = from.pulls;
    filled.records_resent = from.records_resent;
    filled.lanes_opened = from.lanes_opened;
    filled.lanes_lost = from.lanes_lost;
    filled.credit_stalls = from.credit_stalls;
    filled.staged_bytes = from.staged_bytes;
    filled.rail_moves = from.rail_moves;
    filled.referenced_bytes = from.referenced_bytes;
    filled.direct_bytes = from.direct_bytes;
    static_assert(std::extent_v<decltype(filled.staleness)> ==
                  std::tuple_size_v<decltype(from.staleness)>);
    std::copy(from.staleness.begin(), from.staleness.end(), filled.staleness);
    filled.follower_pulls = from.follower_pulls;
    filled.follower_redirects = from.follower_redirects;
    verbena::c_api::WriteSized(filled, statistics);
    return absl::OkStatus();
  });
}

verbena_status verbena_client_list_lanes(const verbena_client* client, verbena_lane_function show,
                                         void* user) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("verbena_client_list_lanes", "client");
    if (show == nullptr) return NullArgument("verbena_client_list_lanes", "show");
    for (const auto& lane : client->client->statistics().lanes) {
      const verbena_lane shown = {
          sizeof(verbena_lane), lane.server,        lane.shard,          lane.transport.c_str(),
          lane.reason.c_str(),  lane.state.c_str(), lane.device.c_str(), lane.rail};
      show(&shown, user);
    }
    return absl::OkStatus();
  });
}

verbena_status verbena_client_list_members(const verbena_client* client, const verbena_table* table,
                                           verbena_member_function show, void* user) {
  constexpr char kCall[] = "verbena_client_list_members";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (table == nullptr) return NullArgument(kCall, "table");
    if (show == nullptr) return NullArgument(kCall, "show");
    const auto membership = client->client->membership(table->table);
    if (!membership.ok()) return membership.status();
    for (const verbena::Member& member : membership->members) {
      const verbena_member shown = {sizeof(verbena_member), member.incarnation, member.name.c_str(),
                                    member.rank, member.first_step};
      show(&shown, user);
    }
    return absl::OkStatus();
  });
}

verbena_status verbena_first_step(const verbena_client* client, const verbena_table* table,
                                  uint64_t* step) {
  constexpr char kCall[] = "verbena_first_step";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (table == nullptr) return NullArgument(kCall, "table");
    if (step == nullptr) return NullArgument(kCall, "step");
    const auto membership = client->client->membership(table->table);
    if (!membership.ok()) return membership.status();
    *step = membership->first_step;
    return absl::OkStatus();
  });
}

verbena_status verbena_client_list_gpu_paths(const verbena_client* client,
                                             verbena_gpu_path_function show, void* user) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("verbena_client_list_gpu_paths", "client");
    if (show == nullptr) return NullArgument("verbena_client_list_gpu_paths", "show");
    for (const auto& path : client->client->statistics().gpu_paths) {
      const verbena_gpu_path shown = {sizeof(verbena_gpu_path), path.gpu.c_str(),
                                      path.transport.c_str(),   path.device.c_str(),
                                      path.path.c_str(),        path.reason.c_str(),
                                      path.refusal.c_str()};
      show(&shown, user);
    }
    return absl::OkStatus();
  });
}

verbena_status verbena_client_list_missing_transports(const verbena_client* client,
                                                      verbena_text_function show, void* user) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("verbena_client_list_missing_transports", "client");
    if (show == nullptr) return NullArgument("verbena_client_list_missing_transports", "show");
    for (const std::string& text : client->client->statistics().missing_transports) {
      show(text.c_str(), user);
    }
    return absl::OkStatus();
  });
}

}  // extern "C"
