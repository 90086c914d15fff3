// Tables, regions and 16-bit numbers in C.
#include <cstddef>
#include <string>
#include <vector>

#include "client/c/handles.h"
#include "proto/spec/table_spec.h"
#include "verbena/half.h"

namespace verbena::c_api {
namespace {

// The sizes of the structs in release 0.1, which ended with these fields.
constexpr size_t kTableSpecFirst = offsetof(verbena_table_spec, parameter_count) + sizeof(size_t);
constexpr size_t kTableInfoFirst = offsetof(verbena_table_info, non_finite) + sizeof(int32_t);

absl::Status ReadSpec(const verbena_table_spec& given, v1::TableSpec* to) {
  constexpr char kCall[] = "verbena_table_create";
  verbena_table_spec from = {};
  absl::Status status = ReadSized(kCall, "verbena_table_spec", given, kTableSpecFirst, &from);
  if (!status.ok()) return status;
  if (from.name == nullptr) return NullArgument(kCall, "spec->name");
  if (from.shape == nullptr && (from.dim == 0 || from.dimensions != 0)) {
    return NullArgument(kCall, "spec->shape");
  }
  if (from.parameters == nullptr && from.parameter_count != 0) {
    return NullArgument(kCall, "spec->parameters");
  }
  // The rest is checked with every specification; a nonsensical count must be refused here.
  constexpr size_t kMost = 1024;
  if (from.dimensions > kMost || from.parameter_count > kMost) {
    return absl::InvalidArgumentError(absl::StrCat(
        kCall, ": dimensions is ", from.dimensions, " and parameter_count ", from.parameter_count,
        "; allowed: 1 to 8 dimensions, at most ", kMost, " parameters"));
  }
  to->set_name(from.name);
  if (from.job != nullptr) to->set_job(from.job);
  for (size_t i = 0; i < from.dimensions; ++i) to->add_shape(from.shape[i]);
  to->set_dtype(static_cast<v1::DType>(from.dtype));
  to->set_gradient_dtype(static_cast<v1::DType>(from.gradient_dtype));
  to->set_push_codec(static_cast<v1::Codec>(from.push_codec));
  to->set_pull_codec(static_cast<v1::Codec>(from.pull_codec));
  to->set_consistency(static_cast<v1::Consistency>(from.consistency));
  to->set_reduction(static_cast<v1::Reduction>(from.reduction));
  to->set_non_finite(static_cast<v1::NonFinite>(from.non_finite));
  to->set_chunk_bytes(from.chunk_bytes);
  to->set_staleness(from.staleness);
  to->set_dim(from.dim);
  v1::Admission* admission = to->mutable_admission();
  admission->set_kind(static_cast<v1::Admission::Kind>(from.admission));
  admission->set_min_count(from.admission_min_count);
  admission->set_probability(from.admission_probability);
  admission->set_sketch_bytes(from.admission_sketch_bytes);
  admission->set_seed(from.admission_seed);
  to->set_row_dtype(static_cast<v1::DType>(from.row_dtype));
  to->set_stochastic_rounding(from.stochastic_rounding != 0);
  v1::Eviction* eviction = to->mutable_eviction();
  eviction->set_kind(static_cast<v1::Eviction::Kind>(from.eviction));
  eviction->set_ttl(from.eviction_ttl);
  eviction->set_max_rows(from.eviction_max_rows);
  eviction->set_max_bytes(from.eviction_max_bytes);
  if (from.hot_bytes != 0) to->mutable_cold_tier()->set_hot_bytes(from.hot_bytes);
  v1::Initializer* initializer = to->mutable_initializer();
  initializer->set_kind(static_cast<v1::Initializer::Kind>(from.initializer));
  initializer->set_a(from.initializer_a);
  initializer->set_b(from.initializer_b);
  initializer->set_seed(from.initializer_seed);
  v1::Optimizer* optimizer = to->mutable_optimizer();
  if (from.optimizer != nullptr) optimizer->set_name(from.optimizer);
  optimizer->set_rate(from.rate);
  for (size_t i = 0; i < from.parameter_count; ++i) {
    const verbena_parameter& parameter = from.parameters[i];
    if (parameter.name == nullptr) {
      return NullArgument(kCall, absl::StrCat("spec->parameters[", i, "].name").c_str());
    }
    (*optimizer->mutable_parameters())[parameter.name] = parameter.value;
  }
  return absl::OkStatus();
}

// Points into `spec`.
verbena_table_info InfoOf(uint32_t id, const v1::TableSpec& spec) {
  const DenseLayout layout = LayoutOf(spec);
  verbena_table_info info = {};
  info.struct_size = sizeof(info);
  info.name = spec.name().c_str();
  info.job = spec.job().c_str();
  info.optimizer = spec.optimizer().name().c_str();
  info.shape = spec.shape().data();
  info.dimensions = static_cast<size_t>(spec.shape_size());
  info.elements = layout.elements;
  info.bytes = layout.elements * layout.parameter_bytes;
  info.rate = spec.optimizer().rate();
  info.id = id;
  info.chunk_elements = spec.dim() > 0 ? 0 : layout.chunk_elements;
  info.dtype = spec.dtype();
  info.consistency = spec.consistency();
  info.reduction = spec.reduction();
  info.non_finite = spec.non_finite();
  info.staleness = spec.staleness();
  info.dim = spec.dim();
  info.gradient_bytes = layout.elements * layout.gradient_bytes;
  info.gradient_dtype = static_cast<int32_t>(GradientType(spec));
  info.push_codec = VERBENA_CODEC_NONE;
  if (HasPushCodec(spec)) info.push_codec = spec.push_codec();
  info.pull_codec = VERBENA_CODEC_NONE;
  if (HasPullCodec(spec)) info.pull_codec = spec.pull_codec();
  return info;
}

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
    absl::Status status = verbena::c_api::ReadSpec(*spec, &read);
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
      const verbena_table_info info = verbena::c_api::InfoOf(table.id(), table.spec());
      show(&info, user);
    }
    return absl::OkStatus();
  });
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
    verbena::c_api::WriteSized(verbena::c_api::InfoOf(table->table.id(), table->table.spec()),
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
