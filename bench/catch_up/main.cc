// The time until two replicas are complete again after a server was killed and started again, with
// and without clients that push at full rate, and the share of the pushes that is left meanwhile.
//
//     catch_up --verbenad build/release/verbenad [--clients 3,16] [--repeats N] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/catch_up/clients.h"
#include "bench/catch_up/watch.h"
#include "bench/cluster_view.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

constexpr char kBench[] = "catch_up";
constexpr int kServers = 3;
constexpr int kPartitions = 32;
constexpr int kLeaseMs = 1000;
constexpr int kMostSeconds = 120;
constexpr int kWindow = 1000 / kBucketMs;  // buckets of a second
constexpr double kTimesQuiet = 3;          // a catch-up under load may take
constexpr double kLeastLeft = 0.4;         // of the pushes, in the worst second

struct Settings {
  std::string verbenad;
  std::vector<int> clients = {3, 16};
  ClientsOptions load;
  int repeats = 3;
};

struct Figures {
  Samples quiet_s, loaded_s, worst, before;
  int64_t log_bytes = 0, resident_bytes = 0, quiet_bytes = 0;
};

void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// One run: a cluster, and its clients.
class Run {
 public:
  Run(const Settings& settings, int clients, Figures* figures)
      : settings_(settings), count_(clients), figures_(*figures) {}

  absl::Status Measure() {
    if (absl::Status s = Start(); !s.ok()) return s;
    for (const bool load : {false, true}) {
      if (absl::Status s = clients_->SetLoad(load); !s.ok()) return s;
      for (const int server : {1, 2}) {
        if (absl::Status s = load ? Loaded(server) : Quiet(server); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Start() {
    ClusterOptions of_cluster;
    of_cluster.verbenad = settings_.verbenad;
    of_cluster.wire.transport = settings_.load.transport;
    of_cluster.servers = kServers;
    of_cluster.replicas = 2;
    of_cluster.lease_ms = kLeaseMs;
    of_cluster.partitions = kPartitions;
    auto started = Cluster::Start(of_cluster);
    if (!started.ok()) return started.status();
    cluster_ = *std::move(started);
    ClientsOptions options = settings_.load;
    options.clients = count_;
    options.cluster = cluster_->address();
    auto clients = Clients::Start(options);
    if (!clients.ok()) return clients.status();
    clients_ = *std::move(clients);
    if (absl::Status s = AwaitCopies(*cluster_, kMostSeconds); !s.ok()) return s;
    // Rows are made, and all that grows has grown.
    if (absl::Status s = clients_->SetLoad(true); !s.ok()) return s;
    Sleep(3000);
    figures_.quiet_bytes = std::max(figures_.quiet_bytes, cluster_->ResidentBytes());
    return clients_->SetLoad(false);
  }

  // Kills the server and starts it again at once. Returns the seconds from then until all copies
  // are complete; *promoted: the bucket in which each partition had a primary again.
  absl::StatusOr<double> Replace(int server, int* promoted) {
    const auto start = steady_clock::now();
    cluster_->KillServer(server);
    if (absl::Status s = cluster_->RestartServer(server); !s.ok()) return s;
    if (absl::Status s = AwaitPrimaries(*cluster_); !s.ok()) return s;
    *promoted = clients_->Now() + 1;
    if (absl::Status s = AwaitCopies(*cluster_, kMostSeconds); !s.ok()) return s;
    return MillisecondsSince(start) / 1e3;
  }

  absl::Status Quiet(int server) {
    int promoted = 0;
    const auto seconds = Replace(server, &promoted);
    if (!seconds.ok()) return seconds.status();
    figures_.quiet_s.Add(*seconds);
    return absl::OkStatus();
  }

  absl::Status Loaded(int server) {
    Sleep(2000);
    const int from = clients_->Now();
    Sleep(4000);
    const std::vector<double> before = clients_->Windows(from, clients_->Now(), kWindow);
    Watch watch(cluster_.get(), kServers);
    int promoted = 0;
    const auto seconds = Replace(server, &promoted);
    if (absl::Status s = clients_->status(); !s.ok()) return s;
    if (!seconds.ok()) return seconds.status();
    while (clients_->Now() < promoted + kWindow) Sleep(kBucketMs);
    const int now = clients_->Now();
    const std::vector<double> during = clients_->Windows(promoted, now, kWindow);
    figures_.loaded_s.Add(*seconds);
    figures_.worst.Add(*std::min_element(during.begin(), during.end()));
    figures_.before.Add(std::accumulate(before.begin(), before.end(), 0.0) /
                        static_cast<double>(before.size()));
    figures_.log_bytes = std::max(figures_.log_bytes, watch.log_bytes());
    figures_.resident_bytes = std::max(figures_.resident_bytes, watch.resident_bytes());
    std::printf("%d clients, server %d: %.2f s; pushes/s in each %d ms since all have a primary:",
                count_, server, *seconds, kBucketMs);
    for (const double rate : clients_->Windows(promoted, now, 1)) std::printf(" %.0f", rate);
    std::printf("\n");
    std::fflush(stdout);
    return absl::OkStatus();
  }

  const Settings& settings_;
  const int count_;
  Figures& figures_;
  std::unique_ptr<Cluster> cluster_;  // outlives its clients
  std::unique_ptr<Clients> clients_;
};

Samples Times(const Samples& samples, double factor) {
  Samples product;
  for (const double value : {samples.Low(), samples.Median(), samples.High()}) {
    product.Add(factor * value);
  }
  return product;
}

void Add(int clients, const Figures& f, Report* report) {
  report->Add({kBench, absl::StrCat(clients, " clients: until two copies; 3 x quiet"), "s",
               Better::kLower, f.loaded_s, Times(f.quiet_s, kTimesQuiet)});
  report->Add({kBench, absl::StrCat(clients, " clients: worst 1 s; 0.4 x before"), "1/s",
               Better::kHigher, f.worst, Times(f.before, kLeastLeft)});
  std::printf(
      "%d clients: redundancy without load in %.2f s, with load in %.2f s; %.0f pushes/s before, "
      "%.0f in the worst second, %.2f of before; the largest log of a server %.1f MiB; all "
      "processes of the cluster %.0f MiB, before %.0f MiB\n",
      clients, f.quiet_s.Median(), f.loaded_s.Median(), f.before.Median(), f.worst.Median(),
      f.worst.Median() / f.before.Median(), static_cast<double>(f.log_bytes) / (1 << 20),
      static_cast<double>(f.resident_bytes) / (1 << 20),
      static_cast<double>(f.quiet_bytes) / (1 << 20));
}

absl::Status MeasureAll(const Settings& settings, Report* report) {
  for (const int clients : settings.clients) {
    Figures figures;
    for (int i = 0; i < settings.repeats; ++i) {
      if (absl::Status s = Run(settings, clients, &figures).Measure(); !s.ok()) return s;
    }
    Add(clients, figures, report);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  std::string json;
  int client = -1, shared = -1;
  CLI::App app("Catch-up of servers that come back under full load");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program");
  app.add_option("--clients", settings.clients, "numbers of clients, each a case")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--repeats", settings.repeats, "clusters of each case, with two kills each")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--transport", settings.load.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}))
      ->capture_default_str();
  app.add_option("--dense-bytes", settings.load.dense_bytes, "size of the dense table")
      ->check(CLI::Range(1024, 1 << 30))
      ->capture_default_str();
  app.add_option("--rows", settings.load.rows, "keys of the embedding table that are pushed")
      ->check(CLI::Range(64, 1 << 30))
      ->capture_default_str();
  app.add_option("--dim", settings.load.dim, "numbers of a row")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--optimizer", settings.load.optimizer, "of both tables")->capture_default_str();
  app.add_option("--new-keys", settings.load.new_keys,
                 "keys in each push of rows that no push has named before, of 64")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--json", json, "write the rows to this file");
  app.add_option("--as-client", client)->group("");
  app.add_option("--shared", shared)->group("");
  app.add_option("--cluster", settings.load.cluster)->group("");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  if (client >= 0) {
    settings.load.clients = settings.clients[0];
    return verbena::bench::RunClient(settings.load, shared, client);
  }
  verbena::bench::Report report;
  const absl::Status status = settings.verbenad.empty()
                                  ? absl::InvalidArgumentError("--verbenad is missing")
                                  : verbena::bench::MeasureAll(settings, &report);
  return report.End(verbena::bench::kBench, status, json);
}
