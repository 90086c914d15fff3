// safetensors files made by hand, and the tables that they become.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_CHECKPOINT_IMPORT_FIXTURE_H_
#define VERBENA_TESTS_SERVER_CHECKPOINT_IMPORT_FIXTURE_H_

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/import.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {

// A tensor of a file made by hand, by the format.
struct Tensor {
  std::string name, dtype, shape, bytes;
};

template <typename T>
std::string Raw(const std::vector<T>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

inline std::string File(const std::vector<Tensor>& tensors) {
  std::string header = "{", data;
  for (const Tensor& t : tensors) {
    absl::StrAppend(&header, header.size() == 1 ? "" : ",", "\"", t.name, "\":{\"dtype\":\"",
                    t.dtype, "\",\"shape\":[", t.shape, "],\"data_offsets\":[", data.size(), ",",
                    data.size() + t.bytes.size(), "]}");
    data += t.bytes;
  }
  header += "}";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

inline const float kNan = std::bit_cast<float>(0x7fc12345u);
inline const std::vector<float> kFloats = {1.5f, -0.0f, 1e-42f, kNan, INFINITY, -3.25f};
inline const std::vector<uint16_t> kHalves = {0x3c01, 0x8000, 0x7bff, 0x0001};
inline const std::vector<uint64_t> kKeyNumbers = {7, UINT64_MAX, 0};

inline std::vector<Tensor> Tensors() {
  return {
      {"tower.weight", "F32", "2,3", Raw(kFloats)}, {"b16", "BF16", "4", Raw(kHalves)},
      {"f16", "F16", "2,2", Raw(kHalves)},          {"scale", "F32", "", Raw<float>({0.5f})},
      {"items.keys", "I64", "3", Raw(kKeyNumbers)}, {"items.values", "F32", "3,2", Raw(kFloats)}};
}

struct Source {
  explicit Source(const std::vector<Tensor>& tensors = Tensors()) {
    disk.Put("/m.safetensors", File(tensors));
  }
  absl::StatusOr<CheckpointReader> Run(ImportOptions options = {}) {
    if (options.from.empty()) options.from = "/m.safetensors";
    if (options.to.empty()) options.to = "/c";
    const auto plan = PlanImport(&disk, options);
    if (!plan.ok()) return plan.status();
    uint64_t said = 0;
    const auto name = Import(&disk, options, *plan, [&](uint64_t more) {
      said += more;
      return absl::OkStatus();
    });
    if (!name.ok()) return name.status();
    CHECK(said == plan->bytes);
    auto reader = CheckpointReader::Open(&disk, Join(options.to, *name));
    if (reader.ok()) {
      const absl::Status whole = reader->Verify([](uint64_t) { return absl::OkStatus(); });
      INFO(whole);
      CHECK(whole.ok());
    }
    return reader;
  }
  // It fails so, and leaves no checkpoint behind.
  void Fails(const ImportOptions& options, absl::StatusCode code,
             const std::vector<std::string>& words) {
    const size_t before = Checkpoints(options);
    const absl::Status status = Run(options).status();
    INFO(status);
    CHECK(status.code() == code);
    for (const std::string& word : words) {
      CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(word));
    }
    CHECK(Checkpoints(options) == before);
  }
  size_t Checkpoints(const ImportOptions& options) {
    const auto all = ListCheckpoints(&disk, options.to.empty() ? "/c" : options.to);
    return all.ok() ? all->size() : 0;
  }
  SimDisk disk{1};
};

inline void Refused(const std::vector<Tensor>& tensors, const std::vector<std::string>& words,
                    const ImportOptions& options = {}) {
  Source source(tensors);
  source.Fails(options, absl::StatusCode::kInvalidArgument, words);
}

inline std::string Array(const CheckpointReader& reader, const std::string& table,
                         const std::string& array) {
  std::string bytes;
  const absl::Status status =
      reader.ReadArray(table, array, [&](uint64_t, absl::Span<const std::byte> more) {
        bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
        return absl::OkStatus();
      });
  INFO(status);
  CHECK(status.ok());
  return bytes;
}

// A table's rows: key -> all other arrays.
inline std::map<uint64_t, std::string> Rows(const CheckpointReader& reader,
                                            const std::string& table) {
  std::map<uint64_t, std::string> rows;
  const absl::Status status = reader.ReadRows(table, [&](const RowBatch& batch) {
    for (uint64_t r = 0; r < batch.count; ++r) {
      for (size_t c = 1; c < batch.columns.size(); ++c) {
        const size_t bytes = batch.columns[c].size() / batch.count;
        rows[batch.keys()[r]].append(
            reinterpret_cast<const char*>(batch.columns[c].data()) + r * bytes, bytes);
      }
    }
    return absl::OkStatus();
  });
  INFO(status);
  CHECK(status.ok());
  return rows;
}

inline const v1::TableSpec& SpecOf(const CheckpointReader& reader, const std::string& table) {
  INFO(table);
  REQUIRE(reader.FindTable(table) != nullptr);
  return reader.FindTable(table)->spec();
}

}  // namespace verbena::checkpoint::test

#endif  // VERBENA_TESTS_SERVER_CHECKPOINT_IMPORT_FIXTURE_H_
