// The cost of a GPU for a worker: bytes through page-locked staging, in chunks as the client moves
// them, beside one cuMemcpyAsync of page-locked memory a transfer; whole pushes and pulls of its
// memory beside the same.
//
//     gpu --verbenad PROGRAM [--device N] [--size BYTES,...] [--case NAME]
//         [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/gpu/servers.h"
#include "bench/gpu/staging.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "rdma/memory/cuda/cuda_device.h"

namespace verbena::bench {
namespace {

struct Settings {
  int device = 0;
  std::vector<uint64_t> sizes = {1 << 18, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> cases;
  std::string json;
  int runs = 7;
  int milliseconds = 200;
  std::string verbenad;
  int shards = 4;
  uint64_t staging = 16 << 20;
};

std::string SizeName(uint64_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes % (1 << 10) == 0) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " B");
}

// One row of the report: both measured in turn, in bytes per second.
using Rate = absl::FunctionRef<absl::StatusOr<double>()>;
absl::Status AddRow(const Settings& settings, std::string name, Rate ours, Rate limit,
                    Report* report) {
  Row row{"gpu", std::move(name), "GB/s", Better::kHigher, {}, {}};
  for (int run = 0; run < settings.runs; ++run) {
    const auto value = ours();
    if (!value.ok()) return value.status();
    const auto most = limit();
    if (!most.ok()) return most.status();
    row.value.Add(*value / 1e9);
    row.limit.Add(*most / 1e9);
  }
  report->Add(std::move(row));
  return absl::OkStatus();
}

absl::Status Staging(const Settings& settings, std::shared_ptr<rdma::Device> device,
                     Report* report) {
  for (const uint64_t bytes : settings.sizes) {
    auto world = StagingWorld::Make(device, bytes);
    if (!world.ok()) return world.status();
    for (const auto direction :
         {rdma::Device::Direction::kToHost, rdma::Device::Direction::kToDevice}) {
      const bool out = direction == rdma::Device::Direction::kToHost;
      const absl::Status status = AddRow(
          settings,
          absl::StrCat(out ? "device to slots " : "slots to device ", SizeName(bytes),
                       " of cuMemcpyAsync"),
          [&] { return (*world)->Chunked(direction, settings.milliseconds); },
          [&] { return (*world)->Whole(direction, settings.milliseconds); }, report);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Servers(const Settings& settings, std::shared_ptr<rdma::Device> device,
                     Report* report) {
  auto world =
      ServersWorld::Make(settings.verbenad, settings.shards, settings.device, settings.staging);
  if (!world.ok()) return world.status();
  for (const uint64_t bytes : settings.sizes) {
    auto limits = StagingWorld::Make(device, bytes);
    if (!limits.ok()) return limits.status();
    if (absl::Status status = (*world)->UseTable(bytes); !status.ok()) return status;
    for (const auto what : {ServersWorld::What::kPush, ServersWorld::What::kPull}) {
      const bool push = what == ServersWorld::What::kPush;
      const auto direction =
          push ? rdma::Device::Direction::kToHost : rdma::Device::Direction::kToDevice;
      const absl::Status status = AddRow(
          settings,
          absl::StrCat(push ? "push of " : "pull of ", SizeName(bytes), " of cuMemcpyAsync"),
          [&] { return (*world)->Run(what, settings.milliseconds); },
          [&] { return (*limits)->Whole(direction, settings.milliseconds); }, report);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

struct Case {
  const char* name;
  absl::Status (*run)(const Settings&, std::shared_ptr<rdma::Device>, Report*);
};
constexpr Case kCases[] = {{"staging", Staging}, {"servers", Servers}};

int Run(const Settings& settings) {
  auto device = rdma::OpenCudaDevice(settings.device);
  if (!device.ok()) {
    std::fprintf(stderr, "gpu: %s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  std::printf(
      "gpu: %s, %d interleaved runs of %d ms, medians; GB = 10^9 bytes; staging in chunks of %s, "
      "%d shards\n",
      (*device)->name().c_str(), settings.runs, settings.milliseconds,
      SizeName(StagingWorld::kChunk).c_str(), settings.shards);
  Report report;
  for (const Case& c : kCases) {
    const bool wanted =
        settings.cases.empty() ||
        std::find(settings.cases.begin(), settings.cases.end(), c.name) != settings.cases.end();
    if (!wanted) continue;
    const absl::Status status = c.run(settings, *device, &report);
    if (!status.ok()) {
      std::fprintf(stderr, "gpu: %s: %s\n", c.name, std::string(status.message()).c_str());
      return 1;
    }
  }
  return report.End("gpu", absl::OkStatus(), settings.json);
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app{"Cost of a GPU for a worker: its staging"};
  app.add_option("--device", settings.device, "GPU, as CUDA counts them")->capture_default_str();
  app.add_option("--size", settings.sizes, "bytes of a transfer")
      ->delimiter(',')
      ->check(CLI::Range(uint64_t{4}, uint64_t{1} << 33));
  app.add_option("--case", settings.cases, "staging, servers (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"staging", "servers"}));
  app.add_option("--runs", settings.runs, "of each figure")->check(CLI::Range(1, 1000));
  app.add_option("--milliseconds", settings.milliseconds, "of a run")->check(CLI::Range(1, 60'000));
  app.add_option("--json", settings.json, "write the rows to this file");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program")->required();
  app.add_option("--shards", settings.shards, "of its server")->check(CLI::Range(1, 64));
  app.add_option("--staging", settings.staging, "bytes of staging of its client, each direction")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 32));
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  return verbena::bench::Run(settings);
}
