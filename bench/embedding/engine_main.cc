// The memory of rows of an embedding table, and the speed at which the engine of one shard looks
// them up and applies row-wise Adagrad to them, without a network. Beside it, in the same run:
//   the limit: a loop that reads a random line of an index, and then the row it names (a push:
//   reads and writes it), with the next ones on their way; a batched, prefetching loop over
//   absl::flat_hash_map<uint64_t, uint32_t> into one array.
//
//     embedding_engine [--rows N] [--dim N]... [--batch N] [--partitions N] [--repeats N]
//                      [--json FILE]
//
// Every rate is the median of interleaved runs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "bench/embedding/limits.h"
#include "bench/embedding/pages.h"
#include "bench/embedding/zipf.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "proto/wire/routing.h"
#include "server/executor/slab_allocator.h"
#include "shard/engine.h"

namespace verbena::bench {
namespace {

struct Settings {
  uint64_t rows = 10'000'000;
  std::vector<uint32_t> dims = {16, 64, 128};
  uint32_t batch = 4096;
  uint32_t partitions = kDefaultPartitions;
  int repeats = 5;
  std::string row_dtype = "f32";
  bool evicts = false;
  std::string json;

  v1::DType RowType() const {
    if (row_dtype == "f32") return v1::DTYPE_F32;
    return row_dtype == "bf16" ? v1::DTYPE_BF16 : v1::DTYPE_F16;
  }
  // Parameters and state.
  size_t RowBytes(uint32_t dim) const {
    return (row_dtype == "f32" ? dim * 4 : (dim + 1) / 2 * 4) + sizeof(float);
  }
};

constexpr char kBench[] = "embedding_engine";
constexpr uint64_t kServer = 1, kWorker = 2;
constexpr uint32_t kTable = 1;
constexpr uint64_t kKeysOfRun = 1 << 19;
constexpr float kRate = 0.01f;

// Spread over 64 bits, as hashed categories are; a bijection, so that no two are alike.
uint64_t Key(uint64_t i) { return i * 0x9e3779b97f4a7c15u; }

uint64_t ResidentBytes() {
  uint64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// A request's keys, by partition as a client sends them.
struct Batch {
  std::vector<uint64_t> numbers, keys;
  std::vector<Group> groups;
};

// Memory as a server's shard has it, and how much of it is in use.
class CountedSlabs final : public shard::Allocator {
 public:
  shard::Buffer Allocate(size_t bytes) override { return Counted(slabs_.Allocate(bytes)); }
  shard::Buffer AllocateRows(size_t bytes, size_t unit) override {
    return Counted(slabs_.AllocateRows(bytes, unit));
  }
  shard::Buffer AllocateScratch(size_t bytes) override {
    return Counted(slabs_.AllocateScratch(bytes));
  }
  void Free(const shard::Buffer& buffer) override {
    used_ -= buffer.bytes;
    slabs_.Free(buffer);
  }
  void Count(int64_t bytes) override { used_ += static_cast<uint64_t>(bytes); }
  uint64_t used() const { return used_; }

 private:
  shard::Buffer Counted(const shard::Buffer& buffer) {
    used_ += buffer.bytes;
    return buffer;
  }
  server::SlabAllocator slabs_{"bench"};
  uint64_t used_ = 0;
};

// One engine with one table, alone.
class Table {
 public:
  Table(const Settings& settings, uint32_t dim) : settings_(settings), dim_(dim) {
    v1::ClusterView view;
    view.set_revision(1);
    for (uint32_t p = 0; p < settings.partitions; ++p) {
      v1::Partition* partition = view.add_partitions();
      partition->set_id(p);
      partition->set_epoch(1);
      partition->set_primary(kServer);
    }
    v1::Job* job = view.add_jobs();
    job->set_name(kBench);
    job->set_generation(1);
    job->set_expected_workers(1);
    v1::Worker* worker = job->add_members();
    worker->set_incarnation(kWorker);
    worker->set_rank(0);
    v1::Table* table = view.add_tables();
    table->set_id(kTable);
    v1::TableSpec* spec = table->mutable_spec();
    spec->set_name("rows");
    spec->set_job(kBench);
    spec->set_dim(dim);
    spec->set_dtype(v1::DTYPE_F32);
    spec->set_consistency(v1::CONSISTENCY_ASYNC);
    spec->set_reduction(v1::REDUCTION_SUM);
    spec->set_non_finite(v1::NON_FINITE_REJECT);
    spec->mutable_initializer()->set_kind(v1::Initializer::ZEROS);
    spec->mutable_optimizer()->set_name("rowwise_adagrad");
    spec->mutable_optimizer()->set_rate(kRate);
    spec->set_chunk_bytes(256 * 1024);
    spec->set_row_dtype(settings.RowType());
    if (settings.evicts) {
      spec->mutable_eviction()->set_kind(v1::Eviction::LRU);
      spec->mutable_eviction()->set_max_rows(settings.rows * 2);  // none goes
    }
    shard::EngineOptions options;
    options.allocator = &memory_;
    options.server = kServer;
    engine_ = std::make_unique<shard::Engine>(options);
    status_ = engine_->ApplyView(view);
    sequences_.resize(settings.partitions);
  }
  const absl::Status& status() const { return status_; }
  const CountedSlabs& memory() const { return memory_; }

  // The batch of these numbers; sorted by partition.
  Batch BatchOf(std::vector<uint64_t> numbers) const {
    const auto partition = [&](uint64_t n) {
      return PartitionOfKey(kTable, Key(n), settings_.partitions);
    };
    std::sort(numbers.begin(), numbers.end(), [&](uint64_t a, uint64_t b) {
      const uint32_t p = partition(a), q = partition(b);
      return p != q ? p < q : Key(a) < Key(b);
    });
    Batch batch;
    for (const uint64_t n : numbers) {
      const uint32_t p = partition(n);
      if (batch.groups.empty() || batch.groups.back().partition != p) {
        batch.groups.push_back({p, 0, 1, 0, 0, 0});
      }
      ++batch.groups.back().count;
      batch.keys.push_back(Key(n));
    }
    batch.numbers = std::move(numbers);
    return batch;
  }
  bool Push(Batch* batch, const float* gradients) {
    for (Group& g : batch->groups) g.sequence = ++sequences_[g.partition];
    const auto* bytes = reinterpret_cast<const std::byte*>(gradients);
    const shard::GroupsOutcome outcome =
        engine_->PushRows({{},
                           kWorker,
                           kTable,
                           batch->groups,
                           batch->keys,
                           {bytes, batch->keys.size() * dim_ * sizeof(float)}});
    return outcome.answer.status == ReplyStatus::kOk;
  }
  bool Lookup(const Batch& batch) {
    const shard::PullOutcome outcome =
        engine_->Lookup({{}, kWorker, kTable, batch.groups, batch.keys, 0, 0, 0, true});
    if (outcome.kind != shard::PullOutcome::Kind::kReady) return false;
    engine_->Unpin(outcome.view.pin);
    return true;
  }

 private:
  const Settings& settings_;
  const uint32_t dim_;
  CountedSlabs memory_;
  std::unique_ptr<shard::Engine> engine_;
  absl::Status status_;
  std::vector<uint64_t> sequences_;
};

class Bench {
 public:
  Bench(const Settings& settings, uint32_t dim, Report* report)
      : settings_(settings),
        dim_(dim),
        report_(report),
        gradients_(size_t{settings.batch} * dim, 0.5f),
        out_(size_t{settings.batch} * dim) {}

  absl::Status Run() {
    if (!table_.status().ok()) return table_.status();
    WarmUp();
    Load();
    RowArray array(settings_.rows, dim_ + 1);
    std::fill_n(array.rows, settings_.rows * array.width, 0.0f);
    TwoMisses limit(settings_.rows, &array);
    std::vector<uint64_t> keys(settings_.rows);
    for (uint64_t i = 0; i < settings_.rows; ++i) keys[i] = Key(i);
    HashMap map(keys, &array);
    for (const bool zipf : {false, true}) {
      for (const bool push : {false, true}) Measure(zipf, push, &limit, &map);
    }
    return failed_ ? absl::InternalError("a request was refused") : absl::OkStatus();
  }

 private:
  // Code and heap that are touched once, which are no row's: with another table.
  void WarmUp() {
    Table other(settings_, dim_);
    std::vector<uint64_t> numbers(settings_.batch);
    for (uint64_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    Batch batch = other.BatchOf(std::move(numbers));
    failed_ |= !other.Push(&batch, gradients_.data()) || !other.Lookup(batch);
  }

  // Makes the rows, and prints their memory at sizes between a tenth of them and all.
  void Load() {
    const size_t row = settings_.RowBytes(dim_);
    const uint64_t before = ResidentBytes(), used = table_.memory().used();
    uint64_t next = settings_.rows / 10;
    std::printf("dim %u, row and state %zu bytes; beside them, a row: resident / counted bytes\n",
                dim_, row);
    const auto start = std::chrono::steady_clock::now();
    std::vector<uint64_t> numbers;
    for (uint64_t i = 0; i < settings_.rows; ++i) {
      numbers.push_back(i);
      if (numbers.size() < settings_.batch && i + 1 < std::min(next, settings_.rows)) continue;
      Batch batch = table_.BatchOf(std::exchange(numbers, {}));
      failed_ |= !table_.Push(&batch, gradients_.data());
      if (i + 1 < std::min(next, settings_.rows)) continue;
      const auto beside = [&](uint64_t bytes) {
        return static_cast<double>(bytes) / static_cast<double>(i + 1) - static_cast<double>(row);
      };
      std::printf("  %9llu rows: %6.2f / %6.2f\n", static_cast<unsigned long long>(i + 1),
                  beside(ResidentBytes() - before), beside(table_.memory().used() - used));
      next += std::max<uint64_t>(next / 6, 1);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("  made at %.2f Mrow/s, sorting them by partition included\n",
                static_cast<double>(settings_.rows) / seconds.count() / 1e6);
  }

  std::vector<Batch> Draw(bool zipf) {
    ZipfRows skewed(settings_.rows);
    std::uniform_int_distribution<uint64_t> any(0, settings_.rows - 1);
    std::vector<Batch> batches;
    for (uint64_t b = 0; b < std::max<uint64_t>(kKeysOfRun / settings_.batch, 1); ++b) {
      // Clients send no key twice.
      absl::flat_hash_set<uint64_t> drawn;
      while (drawn.size() < settings_.batch) {
        drawn.insert(zipf ? skewed(random_) : any(random_));
      }
      batches.push_back(table_.BatchOf({drawn.begin(), drawn.end()}));
    }
    return batches;
  }

  void Measure(bool zipf, bool push, TwoMisses* limit, HashMap* map) {
    const std::string what =
        absl::StrCat(push ? "push" : "look up", " dim ", dim_, zipf ? ", Zipf 1.05" : ", uniform");
    Row beside_limit{kBench, what, "Mrow/s", Better::kHigher, {}, {}};
    Row beside_map{kBench, absl::StrCat(what, ", hash map"), "Mrow/s", Better::kHigher, {}, {}};
    for (int i = 0; i < settings_.repeats; ++i) {
      std::vector<Batch> batches = Draw(zipf);
      const auto rate = [&](const auto& work) {
        const auto start = std::chrono::steady_clock::now();
        for (Batch& batch : batches) work(&batch);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        return static_cast<double>(batches.size() * settings_.batch) / seconds.count() / 1e6;
      };
      const double ours = rate([&](Batch* b) {
        failed_ |= !(push ? table_.Push(b, gradients_.data()) : table_.Lookup(*b));
      });
      beside_limit.value.Add(ours);
      beside_map.value.Add(ours);
      beside_limit.limit.Add(rate([&](Batch* b) {
        if (push) {
          limit->Push(b->numbers, dim_, gradients_.data());
        } else {
          limit->Lookup(b->numbers, dim_, out_.data());
        }
      }));
      beside_map.limit.Add(rate([&](Batch* b) {
        if (push) {
          map->Push(b->keys, dim_, gradients_.data(), kRate);
        } else {
          map->Lookup(b->keys, dim_, out_.data());
        }
      }));
    }
    report_->Add(std::move(beside_limit));
    report_->Add(std::move(beside_map));
  }

  const Settings& settings_;
  const uint32_t dim_;
  Report* const report_;
  Table table_{settings_, dim_};
  std::vector<float> gradients_, out_;
  std::mt19937_64 random_{1};
  bool failed_ = false;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("Memory of rows, and speed at which the engine looks them up and updates them");
  app.add_option("--rows", settings.rows, "rows of the table")
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--dim", settings.dims, "numbers of a row; may be repeated")
      ->check(CLI::Range(1, 1024));
  app.add_option("--batch", settings.batch, "keys of a push or lookup")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--partitions", settings.partitions, "of the table, all on this shard")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--repeats", settings.repeats, "interleaved runs")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--row-dtype", settings.row_dtype,
                 "type of rows in memory; they are compared with f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_flag("--evicts", settings.evicts, "rows have stamps, by which they would be dropped");
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  std::printf(
      "one thread; %llu rows, %u partitions, batches of %u; memory in slabs of 64 MiB, advised to "
      "be huge pages of 2 MiB; row-wise Adagrad, rows of %s%s\n",
      static_cast<unsigned long long>(settings.rows), settings.partitions, settings.batch,
      settings.row_dtype.c_str(), settings.evicts ? " with stamps" : "");
  verbena::bench::Report report;
  for (const uint32_t dim : settings.dims) {
    auto bench = std::make_unique<verbena::bench::Bench>(settings, dim, &report);
    if (const absl::Status status = bench->Run(); !status.ok()) {
      std::fprintf(stderr, "embedding_engine: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return report.End("embedding_engine", absl::OkStatus(), settings.json);
}
