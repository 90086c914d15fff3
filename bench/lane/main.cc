// The throughput and latency of a lane, beside those of the transport below it: memcpy for shm,
// perftest's ib_write_bw, ib_send_lat and ib_write_lat on the same device for verbs, fi_writedata
// over the same provider for ofi.
//
//     lane --transport shm|verbs|ofi [--device DEV] [--size BYTES,...] [--case NAME] [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cases.h"
#include "bench/lane/fabric.h"
#include "bench/lane/limits.h"
#include "bench/lane/pair.h"
#include "bench/perftest.h"
#include "bench/push_pull/limits.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

constexpr char kBench[] = "lane";
constexpr uint32_t kLatencyBytes = 64;
// ib_write_bw's default tx-depth: both sides have as many bytes in flight, memory allowing.
constexpr uint32_t kPerftestDepth = 128;
constexpr uint64_t kDepthMemory = uint64_t{64} << 20;
constexpr uint32_t kLeastDepth = 16;

struct Settings {
  std::string transport = "shm";
  std::string device;
  std::string provider = "tcp;ofi_rxm";
  std::vector<uint32_t> sizes = {4096, 65536, 262144, 1048576};
  std::vector<std::string> cases;
  std::string json;
  std::vector<std::string> perftest;
  int runs = 5;
  int seconds = 2;
  uint32_t depth = 0;
  int spin_us = 200;
  bool limits = true;

  bool verbs() const { return transport == "verbs"; }
  bool ofi() const { return transport == "ofi"; }
  const char* throughput_limit() const {
    return verbs() ? "ib_write_bw" : ofi() ? "fi_writedata" : "memcpy";
  }
  FabricOptions fabric(uint32_t bytes) const {
    return {.provider = provider, .address = "127.0.0.1", .bytes = bytes, .depth = DepthFor(bytes)};
  }
  // In a unit that leaves few digits: memory is that much faster.
  const char* rate_unit() const { return verbs() ? "MB/s" : "GB/s"; }
  double rate(double megabytes) const { return verbs() ? megabytes : megabytes / 1e3; }
  uint32_t DepthFor(uint32_t bytes) const {
    if (depth > 0) return depth;
    if (!verbs()) return kLeastDepth;
    return static_cast<uint32_t>(
        std::clamp<uint64_t>(kDepthMemory / bytes, kLeastDepth, kPerftestDepth));
  }
  absl::StatusOr<std::unique_ptr<Pair>> OpenPair(uint32_t bytes, uint32_t records,
                                                 bool placed) const {
    return Pair::Open({.transport = transport,
                       .device = device,
                       .provider = provider,
                       .bytes = bytes,
                       .depth = records,
                       .spin_us = spin_us,
                       .placed = placed});
  }
};

std::string SizeName(uint32_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes % (1 << 10) == 0) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " B");
}

// One side's payload per second, in one direction.
absl::StatusOr<double> ThroughputLimit(const Settings& settings, const Pair& pair, uint32_t bytes) {
  if (settings.ofi()) return FabricMegabytes(settings.fabric(bytes), settings.seconds);
  if (!settings.verbs()) return CopyMegabytes(bytes, settings.DepthFor(bytes), settings.seconds);
  return WriteMegabytes({.device = pair.device(), .placed = false, .extra = settings.perftest},
                        bytes, settings.seconds, Direction::kOne);
}

absl::Status Throughput(const Settings& settings, RecordType type, Report* report) {
  const char* const what = type == RecordType::kPush ? "write" : "pull";
  const char* const limit = settings.throughput_limit();
  for (const uint32_t bytes : settings.sizes) {
    auto pair = settings.OpenPair(bytes, settings.DepthFor(bytes), !settings.verbs());
    if (!pair.ok()) return pair.status();
    Row row{kBench,
            absl::StrCat(settings.transport, " ", what, " ", SizeName(bytes), " of ", limit),
            settings.rate_unit(),
            Better::kHigher,
            {},
            {}};
    for (int run = 0; run < settings.runs; ++run) {
      const auto ours = (*pair)->Megabytes(type, settings.seconds);
      if (!ours.ok()) return ours.status();
      row.value.Add(settings.rate(*ours));
      if (!settings.limits) continue;
      const auto theirs = ThroughputLimit(settings, **pair, bytes);
      if (!theirs.ok()) return theirs.status();
      row.limit.Add(settings.rate(*theirs));
    }
    report->Add(std::move(row));
  }
  return absl::OkStatus();
}

absl::Status Writes(const Settings& settings, Report* report) {
  return Throughput(settings, RecordType::kPush, report);
}
absl::Status Pulls(const Settings& settings, Report* report) {
  return Throughput(settings, RecordType::kPull, report);
}

// A limit of the latency rows, by run.
absl::Status AddLatencyLimits(const Settings& settings, const Pair& pair, const PushTimes& ours,
                              std::vector<Row>* rows) {
  if (settings.ofi()) {
    const auto times = FabricRoundTrip(settings.fabric(kLatencyBytes), settings.seconds);
    if (!times.ok()) return times.status();
    (*rows)[0].limit.Add(times->median_us);
    (*rows)[1].limit.Add(times->p99_us);
    return absl::OkStatus();
  }
  if (!settings.verbs()) {
    const double micros = PingPongNanos(300000) / 1e3;
    for (Row& row : *rows) row.limit.Add(micros);
    return absl::OkStatus();
  }
  const PerftestOptions options{
      .device = pair.device(), .placed = true, .extra = settings.perftest};
  // perftest counts rounds, not seconds: as many as ours were.
  const int rounds = std::clamp(ours.rounds, 1000, 1'000'000);
  const auto send = SendRoundTrip(options, kLatencyBytes, rounds, Waiting::kPolling);
  if (!send.ok()) return send.status();
  const auto write = WriteRoundTrip(options, kLatencyBytes, rounds);
  if (!write.ok()) return write.status();
  (*rows)[0].limit.Add(send->typical_us);
  (*rows)[1].limit.Add(send->p99_us);
  (*rows)[2].limit.Add(write->typical_us);
  return absl::OkStatus();
}

absl::Status Latency(const Settings& settings, Report* report) {
  auto pair = settings.OpenPair(kLatencyBytes, kLeastDepth, true);
  if (!pair.ok()) return pair.status();
  const std::string ours = absl::StrCat(settings.transport, " 64 B push ");
  const auto row = [](std::string name) {
    return Row{kBench, std::move(name), "us", Better::kLower, {}, {}};
  };
  std::vector<Row> rows;
  if (settings.verbs()) {
    rows = {row(ours + "of ib_send_lat x 2"), row(ours + "p99 of ib_send_lat x 2"),
            row(ours + "of ib_write_lat x 2")};
  } else if (settings.ofi()) {
    rows = {row(ours + "of fi_writedata both ways"), row(ours + "p99 of fi_writedata both ways")};
  } else {
    rows = {row(ours + "of a cache line both ways"), row(ours + "p99 of a cache line both ways")};
  }
  for (int run = 0; run < settings.runs; ++run) {
    const auto times = (*pair)->PushLatency(settings.seconds);
    if (!times.ok()) return times.status();
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].value.Add(i == 1 ? times->p99_us : times->median_us);
    }
    if (!settings.limits) continue;
    absl::Status status = AddLatencyLimits(settings, **pair, *times, &rows);
    if (!status.ok()) return status;
  }
  for (Row& finished : rows) report->Add(std::move(finished));
  return absl::OkStatus();
}

constexpr Case<Settings> kCases[] = {{"write", Writes}, {"pull", Pulls}, {"latency", Latency}};

void PrintConfiguration(const Settings& settings) {
  std::printf(
      "lane: %s%s%s, one lane (one queue pair), %d interleaved runs of %d s, medians; nothing is "
      "applied;\nMB = 10^6, GB = 10^9 bytes. Each side has a thread%s that spins for %d us, then "
      "sleeps. %u "
      "CPUs.\n",
      settings.transport.c_str(), settings.device.empty() ? "" : " on ", settings.device.c_str(),
      settings.runs, settings.seconds,
      settings.verbs() ? ", not pinned," : " of its own CPU (worker 0, shard 1)", settings.spin_us,
      std::thread::hardware_concurrency());
  if (settings.ofi()) {
    std::printf(
        "Both over provider %s on loopback. The limit's threads are placed alike, and only poll.\n",
        settings.provider.c_str());
  }
  if (settings.verbs()) {
    std::printf("latency: worker and perftest's client on CPU 0, shard and server on CPU 1.\n");
  }
  std::printf("Records in flight:");
  for (const uint32_t bytes : settings.sizes) {
    std::printf(" %u of %s;", settings.DepthFor(bytes), SizeName(bytes).c_str());
  }
  if (settings.verbs()) {
    std::printf(
        " ib_write_bw: %u.\nThe round trip of ib_send_lat and ib_write_lat is twice "
        "their output.",
        kPerftestDepth);
  }
  std::printf("\n\n");
}

int Run(const Settings& settings) {
  if (settings.verbs() && settings.limits) {
    if (absl::Status status = FindPerftest(); !status.ok()) {
      std::fprintf(stderr, "lane: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  PrintConfiguration(settings);
  return RunCases("lane", kCases, settings);
}

// A record's payload is counted in elements of 4 bytes; the largest slot is 64 MiB.
std::string CheckSize(const std::string& text) {
  uint64_t bytes = 0;
  if (!CLI::detail::lexical_cast(text, bytes) || bytes < 4 || bytes > (60 << 20) ||
      bytes % 4 != 0) {
    return absl::StrCat("--size ", text, ": allowed: multiples of 4 in 4..", 60 << 20);
  }
  return "";
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("Throughput and latency of a lane, beside the transport below it");
  app.add_option("--transport", settings.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}));
  app.add_option("--device", settings.device, "verbs: rxe0 or rxe0:1; default: the nearest usable");
  app.add_option("--provider", settings.provider, "ofi: of libfabric, over loopback");
  app.add_option("--size", settings.sizes, "payload bytes, multiples of 4 (several: by commas)")
      ->delimiter(',')
      ->check(verbena::bench::CheckSize);
  app.add_option("--case", settings.cases, "write, pull, latency (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"write", "pull", "latency"}));
  app.add_option("--runs", settings.runs, "interleaved runs of each")->check(CLI::Range(1, 99));
  app.add_option("--seconds", settings.seconds, "of each run")->check(CLI::Range(1, 60));
  app.add_option("--depth", settings.depth,
                 "records in flight, each with a slot (default: 16; verbs: as many as ib_write_bw "
                 "has, 128, or 64 MiB of them, at least 16)")
      ->check(CLI::Range(1, 128));
  app.add_option("--spin-us", settings.spin_us, "how long a side looks before it sleeps")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--perftest", settings.perftest,
                 "an argument for perftest's programs (several: repeat), such as --perftest=-x "
                 "--perftest=3");
  app.add_flag("!--no-limit", settings.limits, "only ours");
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  return verbena::bench::Run(settings);
}
