// What rows of an embedding table cost to push, look up and export, beside the same work on a hash
// map of one process.
//
//     embedding --verbenad build/release/verbenad [--rows N] [--dim N] [--batch N] [--json FILE]
//
// Figures of the cases push and lookup are medians of interleaved runs (ours, limit, ours, ...);
// loading and exporting are done once. The limit of sums by bag is the other way to get them: a
// lookup of the rows, summed by the worker. That of encoded rows is the same table without a codec.
//
// With --case tier instead: a table of which a quarter is in memory, the rest in files below the
// system's directory for temporary ones, under a Zipf load; the limit is the same in memory.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/embedding/local_table.h"
#include "bench/embedding/zipf.h"
#include "bench/report.h"
#include "client/client.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad;
  Wire wire;
  std::string json;
  uint64_t rows = 10'000'000;
  uint32_t dim = 16;
  uint32_t batch = 8192;
  uint32_t bag = 20;
  int shards = 1;
  int repeats = 5;
  std::string what = "memory";
};

constexpr char kBench[] = "embedding";
constexpr int kDepth = 4;  // batches in flight
constexpr float kRate = 0.01f;

using std::chrono::steady_clock;

double Seconds(steady_clock::time_point since) {
  return std::chrono::duration<double>(steady_clock::now() - since).count();
}

Row RowOf(const std::string& name) { return {kBench, name, "Mrow/s", Better::kHigher, {}, {}}; }

// Batches of keys: all of them in turn, or drawn from all.
class Keys {
 public:
  explicit Keys(const Settings& settings) : settings_(settings), zipf_(settings.rows) {}
  void Random(std::vector<uint64_t>* keys) {
    std::uniform_int_distribution<uint64_t> any(0, settings_.rows - 1);
    Draw(any, keys);
  }

  // For Worker::Run(): each key once.
  auto All() const {
    return [this, first = uint64_t{0}](std::vector<uint64_t>* keys) mutable {
      keys->resize(std::min<uint64_t>(settings_.batch, settings_.rows - first));
      for (uint64_t& key : *keys) key = Key(first++);
      return !keys->empty();
    };
  }
  // So many batches; of a Zipf distribution, or evenly drawn.
  auto Some(uint64_t batches, bool zipf = false) {
    return [this, left = batches, zipf](std::vector<uint64_t>* keys) mutable {
      if (left == 0) return false;
      --left;
      zipf ? Draw(zipf_, keys) : Random(keys);
      return true;
    };
  }

 private:
  // Spread over 64 bits, as hashed categories are; a bijection, so that no two are alike.
  static uint64_t Key(uint64_t i) { return i * 0x9e3779b97f4a7c15u; }
  template <typename Rows>
  void Draw(Rows& rows, std::vector<uint64_t>* keys) {
    keys->resize(settings_.batch);
    for (uint64_t& key : *keys) key = Key(rows(random_));
  }

  const Settings& settings_;
  std::mt19937_64 random_{1};
  ZipfRows zipf_;
};

// A worker with kDepth batches in flight.
class Worker {
 public:
  // Of a job and a table of its own; `codec` is of both directions.
  static absl::StatusOr<std::unique_ptr<Worker>> Connect(const Settings& settings,
                                                         const std::string& cluster,
                                                         const std::string& job = kBench,
                                                         v1::Codec codec = v1::CODEC_NONE,
                                                         uint64_t hot_bytes = 0) {
    std::unique_ptr<Worker> worker(new Worker(settings));
    ClientOptions options;
    options.cluster = cluster;
    options.job = job;
    options.transport = settings.wire.transport;
    options.rdma.device = settings.wire.device;
    auto connected = Client::Connect(options);
    if (!connected.ok()) return connected.status();
    worker->client_ = *std::move(connected);
    v1::TableSpec spec;
    spec.set_name(absl::StrCat(job, "/rows"));
    spec.set_job(job);
    spec.set_push_codec(codec);
    spec.set_pull_codec(codec);
    if (hot_bytes > 0) spec.mutable_cold_tier()->set_hot_bytes(hot_bytes);
    spec.set_dim(settings.dim);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.set_reduction(v1::REDUCTION_SUM);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(kRate);
    auto table = worker->client_->CreateTable(spec);
    if (!table.ok()) return table.status();
    worker->table_ = *table;
    for (int k = 0; k < kDepth; ++k) {
      auto region =
          worker->client_->AllocateRegion(size_t{settings.batch} * settings.dim * sizeof(float));
      if (!region.ok()) return region.status();
      std::fill_n(region->floats(), size_t{settings.batch} * settings.dim, 0.5f);
      worker->regions_.push_back(*std::move(region));
    }
    return worker;
  }

  // `next` fills in the keys of a batch; no keys: the end. Rows a second.
  template <typename Next>
  absl::StatusOr<double> Run(bool push, Next next) {
    std::vector<Ticket> tickets(kDepth);
    std::vector<uint64_t> keys;
    uint64_t rows = 0;
    const auto start = steady_clock::now();
    for (int k = 0; next(&keys); k = (k + 1) % kDepth) {
      if (absl::Status status = Ended(&tickets[k]); !status.ok()) return status;
      tickets[k] = push ? client_->PushRows(table_, keys, regions_[k])
                        : client_->Lookup(table_, keys, regions_[k]);
      rows += keys.size();
    }
    for (Ticket& ticket : tickets) {
      if (absl::Status status = Ended(&ticket); !status.ok()) return status;
    }
    return static_cast<double>(rows) / Seconds(start);
  }

  // Sums by bag of random batches: made by servers, or of the rows that they send. Keys a second.
  absl::StatusOr<double> Bags(bool pooled, uint64_t batches, Keys* source) {
    std::vector<uint64_t> keys, offsets;
    for (uint32_t at = 0; at < settings_.batch; at += settings_.bag) offsets.push_back(at);
    std::vector<Ticket> tickets(kDepth);
    std::vector<float> sums(offsets.size() * settings_.dim);
    const auto start = steady_clock::now();
    for (uint64_t i = 0; i < batches + kDepth; ++i) {
      const size_t k = i % kDepth;
      if (absl::Status status = Ended(&tickets[k]); !status.ok()) return status;
      if (!pooled && i >= kDepth) Sum(regions_[k].floats(), offsets, sums.data());
      if (i >= batches) continue;
      source->Random(&keys);
      tickets[k] = pooled ? client_->LookupBags(table_, keys, offsets, regions_[k])
                          : client_->Lookup(table_, keys, regions_[k]);
    }
    return static_cast<double>(batches * settings_.batch) / Seconds(start);
  }
  ClientStatistics statistics() const { return client_->statistics(); }

  // Rows a second; `rows` gets how many there are.
  absl::StatusOr<double> Export(uint64_t* rows) {
    const auto start = steady_clock::now();
    std::vector<uint64_t> keys;
    std::vector<float> values;
    auto scan = client_->Scan(table_);
    if (!scan.ok()) return scan.status();
    for (;;) {
      auto more = scan->Next(&keys, &values);
      if (!more.ok()) return more.status();
      if (!*more) break;
      *rows += keys.size();
    }
    return static_cast<double>(*rows) / Seconds(start);
  }

 private:
  explicit Worker(const Settings& settings) : settings_(settings) {}
  void Sum(const float* rows, const std::vector<uint64_t>& offsets, float* sums) const {
    const uint32_t dim = settings_.dim;
    std::fill_n(sums, offsets.size() * dim, 0.0f);
    for (size_t i = 0; i < settings_.batch; ++i, rows += dim) {
      float* const sum = sums + i / settings_.bag * dim;
      for (uint32_t d = 0; d < dim; ++d) sum[d] += rows[d];
    }
  }
  static absl::Status Ended(Ticket* ticket) {
    return ticket->Done() && ticket->status().code() == absl::StatusCode::kFailedPrecondition
               ? absl::OkStatus()  // an empty one
               : ticket->Wait();
  }

  const Settings& settings_;
  std::unique_ptr<Client> client_;
  Table table_;
  std::vector<Region> regions_;
};

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
    const int64_t before = (*cluster)->ResidentBytes();
    if (absl::Status status = Load(worker->get()); !status.ok()) return status;
    const int64_t grown = (*cluster)->ResidentBytes() - before;
    std::printf("resident bytes a row: %.1f, of which %zu are the row and its key\n",
                static_cast<double>(grown) / static_cast<double>(settings_.rows),
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
    // What is asked for a key: the key, and of sums its bag and weight.
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

// A table four times the memory that it may have, beside the same in memory.
class TierBench {
 public:
  explicit TierBench(const Settings& settings) : settings_(settings) {}

  absl::Status Run() {
    auto cluster = Cluster::Start({.verbenad = settings_.verbenad,
                                   .wire = settings_.wire,
                                   .servers = 1,
                                   .shards = settings_.shards,
                                   .cold = true});
    if (!cluster.ok()) return cluster.status();
    const uint64_t bytes = settings_.rows * settings_.dim * sizeof(float);
    std::printf("%llu bytes of rows, %llu of them in memory; Zipf %.2f\n",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(bytes / 4),
                kZipf);
    const std::string& address = (*cluster)->address();
    auto memory = Worker::Connect(settings_, address, "memory");
    if (!memory.ok()) return memory.status();
    auto tiered = Worker::Connect(settings_, address, "tiered", v1::CODEC_NONE, bytes / 4);
    if (!tiered.ok()) return tiered.status();
    Row load = RowOf(absl::StrCat("tier: load ", settings_.rows, " rows of ", settings_.dim));
    for (Worker* worker : {memory->get(), tiered->get()}) {
      auto rate = worker->Run(/*push=*/true, keys_.All());
      if (!rate.ok()) return rate.status();
      (worker == tiered->get() ? load.value : load.limit).Add(*rate / 1e6);
    }
    report_.Add(std::move(load));
    for (const bool push : {false, true}) {
      Row row = RowOf(absl::StrCat("tier: ", push ? "push" : "look up", ", Zipf 1.05"));
      const uint64_t batches = std::max<uint64_t>(1'000'000 / settings_.batch, 8);
      // The first run finds what loading has left in memory.
      for (int repeat = -1; repeat < settings_.repeats; ++repeat) {
        for (Worker* worker : {memory->get(), tiered->get()}) {
          auto rate = worker->Run(push, keys_.Some(batches, /*zipf=*/true));
          if (!rate.ok()) return rate.status();
          if (repeat >= 0) (worker == tiered->get() ? row.value : row.limit).Add(*rate / 1e6);
        }
      }
      report_.Add(std::move(row));
    }
    return absl::OkStatus();
  }
  const Report& report() const { return report_; }

 private:
  const Settings& settings_;
  Keys keys_{settings_};
  Report report_;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("What rows of an embedding table cost, beside a hash map of one process");
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
  CLI11_PARSE(app, argc, argv);
  if (settings.what == "tier") {
    verbena::bench::TierBench tier(settings);
    const absl::Status ended = tier.Run();
    return tier.report().End("embedding", ended, settings.json);
  }
  verbena::bench::Bench bench(settings);
  const absl::Status status = bench.Run();
  return bench.report().End("embedding", status, settings.json);
}
