// The time of saves and restores of a cluster's tables beside the speed of the disk, the share of
// training that is left meanwhile, and the memory that a save takes.
//
//     checkpoint --verbenad build/release/verbenad [--case NAME] [--directory DIR] [--quick]
//                [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/checkpoint/disk.h"
#include "bench/checkpoint/job.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "server/checkpoint/shard_writer.h"
#include "shard/checkpoint/types.h"

namespace verbena::bench {
namespace {

struct Settings {
  JobOptions job;
  std::string directory = "/var/tmp";
  std::string only;
  int repeats = 5;
  double rate = 0.3;                   // of the disk's, that saves beside training may take
  uint64_t checkpoint_memory_mib = 0;  // of each shard; 0: the default
};

constexpr char kBench[] = "checkpoint";
constexpr double kMega = 1e6;
constexpr std::chrono::seconds kBefore(3);

using std::chrono::steady_clock;
using Tables = std::vector<std::string>;

double Seconds(steady_clock::time_point since) {
  return std::chrono::duration<double>(steady_clock::now() - since).count();
}

class Bench {
 public:
  Bench(const Settings& settings, std::string folder, Report* report)
      : settings_(settings), folder_(std::move(folder)), report_(report) {
    kinds_ = {{absl::StrCat("dense table of ", settings.job.dense_mib, " MiB"), {kDense}},
              {absl::StrCat(settings.job.rows, " rows of ", settings.job.dim), {kRows}},
              {"both", {}}};
  }

  absl::Status Run() {
    auto made = Job::Make(settings_.job);
    if (!made.ok()) return made.status();
    std::unique_ptr<Job> job = *std::move(made);
    address_ = job->cluster().address();
    absl::Status status;
    if (Wanted("save")) status = SaveCheckpoints();
    if (status.ok() && Wanted("training")) status = BesideTraining(job.get());
    if (!status.ok() || !Wanted("restore")) return status;
    auto kept = Save(Options({}));
    if (!kept.ok()) return kept.status();
    job.reset();
    return Restores(kept->path);
  }

 private:
  struct Kind {
    std::string name;
    Tables tables;  // none: all
  };

  bool Wanted(const char* name) const { return settings_.only.empty() || settings_.only == name; }

  server::CheckpointTaskOptions Options(const Tables& tables) const {
    server::CheckpointTaskOptions options;
    options.coordinator = address_;
    options.root = folder_ + "/saved";
    options.tables = tables;
    options.memory_bytes = settings_.checkpoint_memory_mib << 20;
    return options;
  }

  void Forget(const Done& done) const { std::filesystem::remove_all(done.path); }

  // The better of one thread and as many as there are that write or read files in a cluster.
  template <typename Rate>
  absl::StatusOr<double> Limit(Rate rate) const {
    auto best = rate(1);
    if (settings_.job.servers == 1 || !best.ok()) return best;
    auto many = rate(settings_.job.servers);
    if (!many.ok()) return many;
    return std::max(*best, *many);
  }

  // Nobody trains.
  absl::Status SaveCheckpoints() {
    for (const Kind& kind : kinds_) {
      Row row{kBench, "save, " + kind.name, "MB/s", Better::kHigher, {}, {}};
      for (int i = 0; i < settings_.repeats; ++i) {
        SettleDisk(folder_);
        auto done = Save(Options(kind.tables));
        if (!done.ok()) return done.status();
        row.value.Add(static_cast<double>(done->bytes) / done->seconds / kMega);
        Forget(*done);
        auto rate = Limit([&](int threads) { return WriteRate(folder_, done->bytes, threads); });
        if (!rate.ok()) return rate.status();
        row.limit.Add(*rate / kMega);
      }
      report_->Add(std::move(row));
    }
    return absl::OkStatus();
  }

  // Bound of a save's memory on each shard: kept content of changed parts, rows on their way to
  // files, and pieces in the file thread.
  double BoundMib() const {
    const double kept =
        settings_.checkpoint_memory_mib > 0
            ? static_cast<double>(settings_.checkpoint_memory_mib)
            : static_cast<double>(shard::PartitionCheckpointRequest::kRowMemory >> 20);
    const double written = static_cast<double>(server::ShardWriter::kRowBytes >> 20);
    const double dense =
        settings_.checkpoint_memory_mib > 0 ? 0 : static_cast<double>(settings_.job.dense_mib);
    return (kept + written) * settings_.job.servers * settings_.job.shards + dense;
  }

  absl::Status BesideTraining(Job* job) {
    const std::string share = absl::StrCat(" a save at ", settings_.rate, " of the disk");
    Row steps{kBench, "training beside" + share, "steps/s", Better::kHigher, {}, {}};
    Row memory{kBench, "memory for" + share, "MiB", Better::kLower, {}, {}};
    Row reached{kBench, "rate of" + share, "MB/s", Better::kHigher, {}, {}};
    memory.limit.Add(BoundMib());
    for (int i = 0; i < settings_.repeats; ++i) {
      auto rate = WriteRate(folder_, settings_.job.dense_mib << 20, 1);
      if (!rate.ok()) return rate.status();
      Training training(job);
      std::this_thread::sleep_for(std::chrono::seconds(1));  // warms up
      const int64_t before = job->cluster().ResidentBytes();
      uint64_t from = training.steps();
      auto start = steady_clock::now();
      std::this_thread::sleep_for(kBefore);
      steps.limit.Add(static_cast<double>(training.steps() - from) / Seconds(start));
      int64_t peak = 0;
      from = training.steps();
      start = steady_clock::now();
      server::CheckpointTaskOptions options = Options({});
      options.bytes_per_second = static_cast<uint64_t>(settings_.rate * *rate);
      auto done =
          Save(options, [&] { peak = std::max(peak, job->cluster().ResidentBytes() - before); });
      steps.value.Add(static_cast<double>(training.steps() - from) / Seconds(start));
      if (absl::Status status = training.End(); !status.ok()) return status;
      if (!done.ok()) return done.status();
      memory.value.Add(std::max(1.0, static_cast<double>(peak >> 20)));
      reached.value.Add(static_cast<double>(done->bytes) / done->seconds / kMega);
      reached.limit.Add(settings_.rate * *rate / kMega);
      Forget(*done);
    }
    report_->Add(std::move(steps));
    report_->Add(std::move(reached));
    report_->Add(std::move(memory));
    return absl::OkStatus();
  }

  // Neither the servers nor the limits find anything in the page cache. One limit reads to the same
  // 4 MiB all the time, the other to memory that is new, as the servers' is.
  absl::Status Restores(const std::string& path) {
    for (const Kind& kind : kinds_) {
      auto files = FilesOf(path, kind.tables.empty() ? Tables{kDense, kRows} : kind.tables);
      if (!files.ok()) return files.status();
      uint64_t bytes = 0;
      for (const std::string& file : *files) bytes += std::filesystem::file_size(file);
      Row row{kBench, "restore, " + kind.name, "MB/s", Better::kHigher, {}, {}};
      Row kept{kBench, row.name + ", new memory", "MB/s", Better::kHigher, {}, {}};
      for (int i = 0; i < settings_.repeats; ++i) {
        if (absl::Status status = DropCache(*files); !status.ok()) return status;
        SettleMemory();
        auto seconds = RestoreOnce({.path = path, .tables = kind.tables});
        if (!seconds.ok()) return seconds.status();
        row.value.Add(static_cast<double>(bytes) / *seconds / kMega);
        for (const bool keep : {false, true}) {
          auto rate = Limit([&](int threads) -> absl::StatusOr<double> {
            if (absl::Status status = DropCache(*files); !status.ok()) return status;
            if (keep) SettleMemory();
            return ReadRate(*files, threads, keep);
          });
          if (!rate.ok()) return rate.status();
          (keep ? kept : row).limit.Add(*rate / kMega);
        }
      }
      kept.value = row.value;
      report_->Add(std::move(row));
      report_->Add(std::move(kept));
    }
    return absl::OkStatus();
  }

  // By servers that were just started. Seconds.
  absl::StatusOr<double> RestoreOnce(server::RestoreTaskOptions options) const {
    auto cluster = Cluster::Start({.verbenad = settings_.job.verbenad,
                                   .wire = settings_.job.wire,
                                   .servers = settings_.job.servers,
                                   .shards = settings_.job.shards});
    if (!cluster.ok()) return cluster.status();
    options.coordinator = (*cluster)->address();
    return Restore(options);
  }

  const Settings& settings_;
  const std::string folder_;
  Report* const report_;
  std::vector<Kind> kinds_;
  std::string address_;
};

absl::Status Run(const Settings& settings, Report* report) {
  const uint64_t bytes =
      (settings.job.dense_mib << 20) + settings.job.rows * (settings.job.dim + 4) * sizeof(float);
  auto folder = WorkFolder::Make(std::filesystem::absolute(settings.directory), 2 * bytes);
  if (!folder.ok()) return folder.status();
  std::printf(
      "%d servers of %d shards; files in %s; the limit: writes of 4 MiB and one fsync, "
      "reads of 4 MiB, not in the page cache before\n",
      settings.job.servers, settings.job.shards, settings.directory.c_str());
  return Bench(settings, folder->path(), report).Run();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  verbena::bench::JobOptions& job = settings.job;
  std::string json;
  bool quick = false;
  CLI::App app("Time of saves and restores, beside the speed of the disk");
  app.add_option("--verbenad", job.verbenad, "the daemon's program")->required();
  app.add_option("--case", settings.only, "only this: save, training or restore")
      ->check(CLI::IsMember({"save", "training", "restore"}));
  app.add_option("--transport", job.wire.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}));
  app.add_option("--device", job.wire.device,
                 "verbs: DEVICE or DEVICE:PORT; default: the nearest usable");
  app.add_option("--directory", settings.directory, "a folder of its own is made there, on a disk")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option("--servers", job.servers, "processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--shards", job.shards, "shards of each server")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  const auto* dense = app.add_option("--dense-mib", job.dense_mib, "size of the dense table")
                          ->check(CLI::Range(1, 1 << 20))
                          ->capture_default_str();
  const auto* rows = app.add_option("--rows", job.rows, "rows of the embedding table")
                         ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 36))
                         ->capture_default_str();
  app.add_option("--dim", job.dim, "numbers of a row")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--rate", settings.rate, "of the disk's, for saves beside training")
      ->check(NumberIn(0.01, 100))
      ->capture_default_str();
  app.add_option("--save-memory-mib", settings.checkpoint_memory_mib,
                 "memory of each shard for data that changes during a save; 0: the default");
  app.add_option("--repeats", settings.repeats, "interleaved runs")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_flag("--quick", quick, "a quarter of the dense table, a tenth of the rows");
  app.add_option("--json", json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  if (quick && dense->count() == 0) job.dense_mib /= 4;
  if (quick && rows->count() == 0) job.rows /= 10;
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Run(settings, &report);
  return report.End("checkpoint", status, json);
}
