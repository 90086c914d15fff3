// The cost of pushing, looking up and exporting rows of an embedding table, beside the same work on
// a hash map of one process.
//
//     embedding --verbenad build/release/verbenad [--rows N] [--dim N] [--batch N] [--json FILE]
//
// Figures of the cases push and lookup are medians of interleaved runs (ours, limit, ours, ...);
// loading and exporting are done once. The limit of sums by bag is the other way to get them: a
// lookup of the rows, summed by the worker. That of encoded rows is the same table without a codec.
//
// With --case tier instead: a table of which a quarter is in memory, the rest in files below the
// system's directory for temporary ones, under a Zipf load; the limit is the same in memory. And
// steps with prefetch of the next step's rows, beside steps without.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/embedding/local_table.h"
#include "bench/embedding/tier.h"
#include "bench/embedding/worker.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kWarmUpBatches = 64;

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        local_(settings.rows, settings.dim),
        gradients_(size_t{settings.batch} * settings.dim, 0.5f) {}

  absl::Status Run() {
    auto cluster = Cluster::Start({.verbenad = settings_.verbenad,
                                   .wire = settings_.wire,
                                   .servers = 1,
                                   .shards = settings_.shards,
                                   .server_cpu = -1});
    if (!cluster.ok()) return cluster.status();
    auto worker = Worker::Connect(settings_, (*cluster)->address());
    if (!worker.ok()) return worker.status();
    // Memory of lanes and scratch that is touched once belongs to no row: it is counted with the
    // first batch.
    const uint64_t first = std::min<uint64_t>(settings_.batch, settings_.rows / 2);
    for (const bool push : {true, false}) {
      const auto warm = (*worker)->Run(push, keys_.First(first, kWarmUpBatches));
      if (!warm.ok()) return warm.status();
    }
    const int64_t before = (*cluster)->ResidentBytes();
    if (absl::Status status = Load(worker->get()); !status.ok()) return status;
    const int64_t grown = (*cluster)->ResidentBytes() - before;
    std::printf("resident bytes a row: %.1f, of which %zu are the row and its key\n",
                static_cast<double>(grown) / static_cast<double>(settings_.rows - first),
                settings_.dim * sizeof(float) + sizeof(uint64_t));
    for (const bool push : {true, false}) {
      if (absl::Status status = Random(worker->get(), push); !status.ok()) return status;
    }
    if (absl::Status status = Bags(worker->get()); !status.ok()) return status;
    if (absl::Status status = Codecs((*cluster)->address()); !status.ok()) return status;
    return Export(worker->get());
  }
  const Report& report() const { return report_; }

 private:
  absl::Status Load(Worker* worker) {
    Row row = RowOf(absl::StrCat("load ", settings_.rows, " rows of ", settings_.dim));
    auto next = keys_.All();
    auto rate = worker->Run(true, next);
    if (!rate.ok()) return rate.status();
    row.value.Add(*rate / 1e6);
    std::vector<uint64_t> keys;
    const auto start = steady_clock::now();
    while (next(&keys)) local_.Push(keys, gradients_.data(), kRate);
    row.limit.Add(static_cast<double>(settings_.rows) / Seconds(start) / 1e6);
    report_.Add(std::move(row));
    return absl::OkStatus();
  }

  absl::Status Random(Worker* worker, bool push) {
    Row row = RowOf(absl::StrCat(push ? "push" : "look up", " batches of ", settings_.batch));
    const uint64_t batches = std::max<uint64_t>(2'000'000 / settings_.batch, 8);
    for (int repeat = 0; repeat < settings_.repeats; ++repeat) {
      auto next = keys_.Some(batches);
      auto rate = worker->Run(push, next);
      if (!rate.ok()) return rate.status();
      row.value.Add(*rate / 1e6);
      std::vector<uint64_t> keys;
      std::vector<float> out(gradients_.size());
      const auto start = steady_clock::now();
      while (next(&keys)) {
        if (push) {
          local_.Push(keys, gradients_.data(), kRate);
        } else {
          local_.Lookup(keys, out.data());
        }
      }
      row.limit.Add(static_cast<double>(batches * settings_.batch) / Seconds(start) / 1e6);
    }
    report_.Add(std::move(row));
    return absl::OkStatus();
  }

  absl::Status Bags(Worker* worker) {
    Row row = RowOf(absl::StrCat("sums by bag of ", settings_.bag, " keys"));
    const uint64_t batches = std::max<uint64_t>(1'000'000 / settings_.batch, 8);
    const auto keys = static_cast<double>(batches * settings_.batch);
    double bytes[2] = {}, records[2] = {};
    for (int repeat = 0; repeat < settings_.repeats; ++repeat) {
      for (const bool pooled : {true, false}) {
        const ClientStatistics before = worker->statistics();
        auto rate = worker->Bags(pooled, batches, &keys_);
        if (!rate.ok()) return rate.status();
        const ClientStatistics after = worker->statistics();
        bytes[pooled] = static_cast<double>(after.bytes_pulled - before.bytes_pulled) / keys;
        records[pooled] = static_cast<double>(after.pulls - before.pulls) / batches;
        (pooled ? row.value : row.limit).Add(*rate / 1e6);
      }
    }
    // Request bytes of a key: the key, and for sums its bag and weight.
    std::printf(
        "bags: of a key come %.1f bytes and go 16, in %.1f records a batch; of rows come %.1f "
        "and go 8, in %.1f records\n",
        bytes[true], records[true], bytes[false], records[false]);
    report_.Add(std::move(row));
    return absl::OkStatus();
  }

  // Encoded rows beside f32 in another table of the same, smaller, size: every other run is one's.
  absl::Status Codecs(const std::string& cluster) {
    Settings settings = settings_;
    settings.rows = std::min<uint64_t>(settings.rows, 1'000'000);
    auto plain = Worker::Connect(settings, cluster, "none");
    if (!plain.ok()) return plain.status();
    for (const v1::Codec codec : {v1::CODEC_BF16, v1::CODEC_INT8}) {
      const std::string name = codec == v1::CODEC_INT8 ? "int8" : "bf16";
      auto coded = Worker::Connect(settings, cluster, name, codec);
      if (!coded.ok()) return coded.status();
      absl::Status status = Codec(name, settings, plain->get(), coded->get());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Codec(const std::string& name, const Settings& settings, Worker* plain,
                     Worker* coded) {
    Keys keys(settings);
    const uint64_t batches = std::max<uint64_t>(1'000'000 / settings.batch, 8);
    double bytes[2] = {};
    for (const bool push : {true, false}) {
      Row row = RowOf(absl::StrCat(push ? "push " : "look up ", name, " beside f32"));
      for (int repeat = 0; repeat < settings.repeats; ++repeat) {
        for (Worker* worker : {plain, coded}) {
          const ClientStatistics before = worker->statistics();
          auto rate = worker->Run(push, keys.Some(batches));
          if (!rate.ok()) return rate.status();
          (worker == coded ? row.value : row.limit).Add(*rate / 1e6);
          const ClientStatistics after = worker->statistics();
          const uint64_t moved = push ? after.bytes_pushed - before.bytes_pushed
                                      : after.bytes_pulled - before.bytes_pulled;
          bytes[worker == coded] =
              static_cast<double>(moved) / static_cast<double>(batches * settings.batch);
        }
      }
      std::printf("%s: %.1f bytes a key, f32 %.1f\n", row.name.c_str(), bytes[1], bytes[0]);
      report_.Add(std::move(row));
    }
    return absl::OkStatus();
  }

  absl::Status Export(Worker* worker) {
    Row row = RowOf("export all");
    uint64_t rows = 0;
    auto rate = worker->Export(&rows);
    if (!rate.ok()) return rate.status();
    if (rows != settings_.rows) {
      return absl::DataLossError(
          absl::StrCat(rows, " rows were exported of the ", settings_.rows, " pushed"));
    }
    row.value.Add(*rate / 1e6);
    std::vector<float> out(gradients_.size());
    const auto start = steady_clock::now();
    local_.Scan(out.data(), settings_.batch);
    row.limit.Add(static_cast<double>(rows) / Seconds(start) / 1e6);
    report_.Add(std::move(row));
    return absl::OkStatus();
  }

  const Settings& settings_;
  Keys keys_{settings_};
  LocalTable local_;
  std::vector<float> gradients_;
  Report report_;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("Cost of rows of an embedding table, beside a hash map of one process");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program")->required();
  app.add_option("--transport", settings.wire.transport, "shm or verbs")
      ->check(CLI::IsMember({"shm", "verbs"}));
  app.add_option("--device", settings.wire.device,
                 "verbs: DEVICE or DEVICE:PORT; default: the nearest usable");
  app.add_option("--rows", settings.rows, "rows of the table")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 36))
      ->capture_default_str();
  app.add_option("--dim", settings.dim, "numbers of a row")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "keys of a push or lookup")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--bag", settings.bag, "keys of a bag")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--shards", settings.shards, "shards of the server")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--repeats", settings.repeats, "interleaved runs of push and lookup")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--case", settings.what, "rows in memory, or beyond it")
      ->check(CLI::IsMember({"memory", "tier"}))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  if (settings.what == "tier") {
    verbena::bench::TierBench tier(settings);
    const absl::Status ended = tier.Run();
    return tier.report().End("embedding", ended, settings.json);
  }
  verbena::bench::Bench bench(settings);
  const absl::Status status = bench.Run();
  return bench.report().End("embedding", status, settings.json);
}
