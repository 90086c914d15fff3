// A worker of the benchmark, and the keys that it names.
//
// **Thread safety**: one thread.
#ifndef VERBENA_BENCH_EMBEDDING_WORKER_H_
#define VERBENA_BENCH_EMBEDDING_WORKER_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/embedding/zipf.h"
#include "bench/report.h"
#include "verbena/client.h"

namespace verbena::bench {

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

inline constexpr char kBench[] = "embedding";
inline constexpr int kDepth = 4;  // batches in flight
inline constexpr float kRate = 0.01f;

inline double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

inline Row RowOf(const std::string& name) {
  return {kBench, name, "Mrow/s", Better::kHigher, {}, {}};
}

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
  // The first `count` of them, so often.
  auto First(uint64_t count, uint64_t times) const {
    return [count, left = times](std::vector<uint64_t>* keys) mutable {
      if (left == 0) return false;
      --left;
      keys->resize(count);
      for (uint64_t i = 0; i < count; ++i) (*keys)[i] = Key(i);
      return true;
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
  // Joins a job of its own, with a table of its own; `codec` is for both directions.
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
    const auto start = std::chrono::steady_clock::now();
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

  // Steps that look a batch's rows up, compute on them and push: one after the other, as in a sync
  // table. `compute`: the time of another device's work meanwhile. `intends`: with prefetch of the
  // next batch's keys before that. Steps a second.
  template <typename Next>
  absl::StatusOr<double> Steps(bool intends, std::chrono::milliseconds compute, Next next) {
    std::vector<uint64_t> keys, ahead;
    uint64_t steps = 0;
    next(&keys);
    const auto start = std::chrono::steady_clock::now();
    for (bool more = true; more; ++steps, keys.swap(ahead)) {
      absl::Status status = client_->Lookup(table_, keys, regions_[0]).Wait();
      more = next(&ahead);
      Ticket prefetch;
      if (more && intends) prefetch = client_->Prefetch(table_, ahead);
      if (status.ok()) std::this_thread::sleep_for(compute);
      if (status.ok()) status = client_->PushRows(table_, keys, regions_[1]).Wait();
      if (status.ok() && more && intends) status = prefetch.Wait();
      if (!status.ok()) return status;
    }
    return static_cast<double>(steps) / Seconds(start);
  }

  // Sums by bag of random batches: made by servers, or of the rows that they send. Keys a second.
  absl::StatusOr<double> Bags(bool pooled, uint64_t batches, Keys* source) {
    std::vector<uint64_t> keys, offsets;
    for (uint32_t at = 0; at < settings_.batch; at += settings_.bag) offsets.push_back(at);
    std::vector<Ticket> tickets(kDepth);
    std::vector<float> sums(offsets.size() * settings_.dim);
    const auto start = std::chrono::steady_clock::now();
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
    const auto start = std::chrono::steady_clock::now();
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

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_WORKER_H_
