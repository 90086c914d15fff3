// Tables, regions and 16-bit numbers in C.
#include "client/c/handles.h"
#include "client/c/table_spec.h"
#include "verbena/half.h"

namespace verbena::c_api {
namespace {

absl::Status ReadKind(const char* call, int32_t kind, MemoryKind* to) {
  switch (kind) {
    case VERBENA_MEMORY_HOST:
      *to = MemoryKind::kHost;
      return absl::OkStatus();
    case VERBENA_MEMORY_PINNED:
      *to = MemoryKind::kPinned;
      return absl::OkStatus();
    case VERBENA_MEMORY_CUDA:
      *to = MemoryKind::kCuda;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(call, ": kind is ", kind, "; allowed: 0 (host), 1 (pinned), 2 (cuda)"));
  }
}

}  // namespace
}  // namespace verbena::c_api

using verbena::CallOptions;
using verbena::c_api::Guarded;
using verbena::c_api::NullArgument;
using verbena::c_api::ReadTimeout;

extern "C" {

void verbena_table_spec_init(verbena_table_spec* spec, size_t struct_size) {
  verbena::c_api::Initialize(verbena_table_spec{}, struct_size, spec);
}

verbena_status verbena_table_create(verbena_client* client, const verbena_table_spec* spec,
                                    int64_t timeout_ms, verbena_table** table) {
  constexpr char kCall[] = "verbena_table_create";
  return Guarded([&]() -> absl::Status {
    if (table == nullptr) return NullArgument(kCall, "table");
    *table = nullptr;
    if (client == nullptr) return NullArgument(kCall, "client");
    if (spec == nullptr) return NullArgument(kCall, "spec");
    verbena::v1::TableSpec read;
    CallOptions options;
    absl::Status status = verbena::c_api::ReadTableSpec(*spec, &read);
    if (status.ok()) status = ReadTimeout(kCall, timeout_ms, &options.timeout);
    if (!status.ok()) return status;
    auto made = client->client->CreateTable(read, options);
    if (!made.ok()) return made.status();
    *table = new verbena_table{*std::move(made)};
    return absl::OkStatus();
  });
}

verbena_status verbena_table_list_options(verbena_table_option_function show, void* user) {
  return Guarded([&]() -> absl::Status {
    if (show == nullptr) return NullArgument("verbena_table_list_options", "show");
    // Never destroyed: its texts are valid to the end of the process.
    static const auto* const kOptions =
        new std::vector<verbena::c_api::OptionDescription>(verbena::c_api::DescribeOptions());
    for (const auto& from : *kOptions) {
      const verbena_table_option option = {sizeof(verbena_table_option),
                                           from.option->name,
                                           from.member,
                                           from.type.c_str(),
                                           from.option->unit,
                                           from.allowed.c_str(),
                                           from.default_value.c_str(),
                                           from.applies_to.c_str(),
                                           from.option->doc};
      show(&option, user);
    }
    return absl::OkStatus();
  });
}

verbena_status verbena_table_create_with(verbena_client* client, const verbena_setting* settings,
                                         size_t count, int64_t timeout_ms, verbena_table** table) {
  constexpr char kCall[] = "verbena_table_create_with";
  return Guarded([&]() -> absl::Status {
    if (table == nullptr) return NullArgument(kCall, "table");
    *table = nullptr;
    if (client == nullptr) return NullArgument(kCall, "client");
    if (settings == nullptr) return NullArgument(kCall, "settings");
    verbena::v1::TableSpec read;
    CallOptions options;
    absl::Status status = verbena::c_api::ReadSettings(settings, count, &read);
    if (status.ok()) status = ReadTimeout(kCall, timeout_ms, &options.timeout);
    if (!status.ok()) return status;
    auto made = client->client->CreateTable(read, options);
    if (!made.ok()) return made.status();
    *table = new verbena_table{*std::move(made)};
    return absl::OkStatus();
  });
}

verbena_status verbena_table_open(verbena_client* client, const char* name, int64_t timeout_ms,
                                  verbena_table** table) {
  constexpr char kCall[] = "verbena_table_open";
  return Guarded([&]() -> absl::Status {
    if (table == nullptr) return NullArgument(kCall, "table");
    *table = nullptr;
    if (client == nullptr) return NullArgument(kCall, "client");
    if (name == nullptr) return NullArgument(kCall, "name");
    CallOptions options;
    if (absl::Status s = ReadTimeout(kCall, timeout_ms, &options.timeout); !s.ok()) return s;
    auto opened = client->client->OpenTable(name, options);
    if (!opened.ok()) return opened.status();
    *table = new verbena_table{*std::move(opened)};
    return absl::OkStatus();
  });
}

verbena_status verbena_table_set_priority(verbena_client* client, const verbena_table* table,
                                          int32_t priority) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("verbena_table_set_priority", "client");
    if (table == nullptr) return NullArgument("verbena_table_set_priority", "table");
    return client->client->SetPriority(table->table, priority);
  });
}

verbena_status verbena_table_drop(verbena_client* client, const char* name, int64_t timeout_ms) {
  constexpr char kCall[] = "verbena_table_drop";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (name == nullptr) return NullArgument(kCall, "name");
    CallOptions options;
    if (absl::Status s = ReadTimeout(kCall, timeout_ms, &options.timeout); !s.ok()) return s;
    return client->client->DropTable(name, options);
  });
}

verbena_status verbena_table_list(verbena_client* client, int64_t timeout_ms,
                                  verbena_table_function show, void* user) {
  constexpr char kCall[] = "verbena_table_list";
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument(kCall, "client");
    if (show == nullptr) return NullArgument(kCall, "show");
    CallOptions options;
    if (absl::Status s = ReadTimeout(kCall, timeout_ms, &options.timeout); !s.ok()) return s;
    auto tables = client->client->ListTables(options);
    if (!tables.ok()) return tables.status();
    for (const verbena::v1::Table& table : *tables) {
      const verbena_table_info info = verbena::c_api::TableInfoOf(table.id(), table.spec());
      show(&info, user);
    }
    return absl::OkStatus();
  });
}

const char* verbena_table_state_array(const verbena_table* table, size_t index) {
  if (table == nullptr || index >= table->state_arrays.size()) return nullptr;
  return table->state_arrays[index].c_str();
}

verbena_status verbena_table_get_info(const verbena_table* table, verbena_table_info* info) {
  constexpr char kCall[] = "verbena_table_get_info";
  return Guarded([&]() -> absl::Status {
    if (table == nullptr) return NullArgument(kCall, "table");
    if (info == nullptr) return NullArgument(kCall, "info");
    if (absl::Status s = verbena::c_api::CheckSize(kCall, "verbena_table_info", info->struct_size,
                                                   verbena::c_api::kTableInfoFirst);
        !s.ok()) {
      return s;
    }
    verbena::c_api::WriteSized(verbena::c_api::TableInfoOf(table->table.id(), table->table.spec()),
                               info);
    return absl::OkStatus();
  });
}

void verbena_table_free(verbena_table* table) { delete table; }

verbena_status verbena_region_allocate(verbena_client* client, size_t bytes, int32_t kind,
                                       int32_t device, verbena_region** region) {
  constexpr char kCall[] = "verbena_region_allocate";
  return Guarded([&]() -> absl::Status {
    if (region == nullptr) return NullArgument(kCall, "region");
    *region = nullptr;
    if (client == nullptr) return NullArgument(kCall, "client");
    verbena::MemoryKind read;
    if (absl::Status s = verbena::c_api::ReadKind(kCall, kind, &read); !s.ok()) return s;
    auto made = client->client->AllocateRegion(bytes, read, device);
    if (!made.ok()) return made.status();
    *region = new verbena_region{*std::move(made), nullptr};
    return absl::OkStatus();
  });
}

verbena_status verbena_region_register(verbena_client* client, void* data, size_t bytes,
                                       int32_t kind, int32_t device, verbena_region** region) {
  constexpr char kCall[] = "verbena_region_register";
  return Guarded([&]() -> absl::Status {
    if (region == nullptr) return NullArgument(kCall, "region");
    *region = nullptr;
    if (client == nullptr) return NullArgument(kCall, "client");
    if (data == nullptr) return NullArgument(kCall, "data");
    verbena::MemoryKind read;
    if (absl::Status s = verbena::c_api::ReadKind(kCall, kind, &read); !s.ok()) return s;
    auto made = client->client->RegisterRegion(data, bytes, read, device);
    if (!made.ok()) return made.status();
    *region = new verbena_region{*std::move(made), nullptr};
    return absl::OkStatus();
  });
}

void verbena_region_set_stream(verbena_region* region, void* stream) {
  if (region != nullptr) region->stream = stream;
}

void* verbena_region_data(const verbena_region* region) {
  return region == nullptr ? nullptr : region->region.data();
}

size_t verbena_region_size(const verbena_region* region) {
  return region == nullptr ? 0 : region->region.size();
}

void verbena_region_free(verbena_region* region) { delete region; }

void verbena_bf16_from_f32(const float* in, uint16_t* out, size_t count) {
  if (in != nullptr && out != nullptr) verbena::BFloat16sFromFloats(in, out, count);
}

void verbena_f32_from_bf16(const uint16_t* in, float* out, size_t count) {
  if (in != nullptr && out != nullptr) verbena::FloatsFromBFloat16s(in, out, count);
}

void verbena_f16_from_f32(const float* in, uint16_t* out, size_t count) {
  if (in != nullptr && out != nullptr) verbena::HalvesFromFloats(in, out, count);
}

void verbena_f32_from_f16(const uint16_t* in, float* out, size_t count) {
  if (in != nullptr && out != nullptr) verbena::FloatsFromHalves(in, out, count);
}

}  // extern "C"
