// The cost of Python: a push_pull of the package verbena, beside the same call in C.
//
//     python --verbenad build/release/verbenad --python /usr/bin/python3 --package
//     build/release/python
//            --script bench/python/calls.py [--json FILE]
//
// Both wait for each call before the next one. Medians of interleaved runs; each has a client, a
// job and a table of its own.
#include <stdio.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/report.h"
#include "verbena/verbena.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad, python, package, script, json;
  int repeats = 7;
};

constexpr char kBench[] = "python";

struct Case {
  const char* name;
  const char* memory;  // as calls.py knows it: "empty", "numpy", "torch"
  uint64_t bytes;
  int calls;  // of a run
};
constexpr Case kCases[] = {
    {"4 KiB, arrays of empty()", "empty", 4 << 10, 20'000},
    {"4 KiB, NumPy arrays", "numpy", 4 << 10, 20'000},
    {"4 KiB, tensors", "torch", 4 << 10, 20'000},
    {"16 MiB, arrays of empty()", "empty", 16 << 20, 60},
    {"16 MiB, NumPy arrays", "numpy", 16 << 20, 60},
};

absl::Status StatusOf(verbena_status status) {
  if (status == VERBENA_OK) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status), verbena_last_error());
}

// A client with a table, and two regions of the case's kind of memory.
class CSide {
 public:
  CSide(const CSide&) = delete;
  CSide& operator=(const CSide&) = delete;
  CSide() = default;
  ~CSide() {
    for (verbena_region* region : regions_) verbena_region_free(region);
    verbena_table_free(table_);
    verbena_client_free(client_);
  }

  absl::Status Open(const std::string& cluster, const Case& c, int run) {
    verbena_connect_options options;
    verbena_connect_options_init(&options, sizeof(options));
    const std::string job = absl::StrCat("c-", c.memory, "-", c.bytes, "-", run);
    options.cluster = cluster.c_str();
    options.job = job.c_str();
    if (absl::Status s = StatusOf(verbena_connect(&options, &client_)); !s.ok()) return s;
    verbena_table_spec spec;
    verbena_table_spec_init(&spec, sizeof(spec));
    const uint64_t shape = c.bytes / sizeof(float);
    spec.name = job.c_str();
    spec.shape = &shape;
    spec.dimensions = 1;
    spec.rate = 1e-6;
    spec.consistency = VERBENA_CONSISTENCY_ASYNC;
    absl::Status s =
        StatusOf(verbena_table_create(client_, &spec, VERBENA_TIMEOUT_DEFAULT, &table_));
    for (int i = 0; i < 2 && s.ok(); ++i) s = AddRegion(c);
    return s;
  }

  // Microseconds of a call.
  absl::StatusOr<double> Run(int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      verbena_ticket* ticket = nullptr;
      verbena_status status = verbena_push_pull(client_, table_, regions_[0], regions_[1], nullptr,
                                                VERBENA_TIMEOUT_DEFAULT, &ticket);
      if (status == VERBENA_OK) status = verbena_ticket_wait(ticket, VERBENA_TIMEOUT_DEFAULT);
      if (status != VERBENA_OK) return StatusOf(status);
      verbena_ticket_free(ticket);
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    return took.count() / calls;
  }

 private:
  absl::Status AddRegion(const Case& c) {
    verbena_region* region = nullptr;
    verbena_status status;
    if (std::string(c.memory) == "empty") {
      status = verbena_region_allocate(client_, c.bytes, VERBENA_MEMORY_HOST, 0, &region);
    } else {
      memory_.emplace_back(c.bytes / sizeof(float));
      status = verbena_region_register(client_, memory_.back().data(), c.bytes, VERBENA_MEMORY_HOST,
                                       0, &region);
    }
    regions_.push_back(region);
    return StatusOf(status);
  }

  verbena_client* client_ = nullptr;
  verbena_table* table_ = nullptr;
  std::vector<std::vector<float>> memory_;
  std::vector<verbena_region*> regions_;
};

absl::StatusOr<double> InC(const std::string& cluster, const Case& c, int run) {
  CSide side;
  if (absl::Status s = side.Open(cluster, c, run); !s.ok()) return s;
  if (auto warm = side.Run(c.calls / 10 + 1); !warm.ok()) return warm.status();
  return side.Run(c.calls);
}

absl::StatusOr<double> InPython(const Settings& settings, const std::string& cluster, const Case& c,
                                int run) {
  const std::string command =
      absl::StrCat("PYTHONPATH='", settings.package, "' '", settings.python, "' '", settings.script,
                   "' ", cluster, " ", c.memory, " ", c.bytes, " ", c.calls, " ", run);
  FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, "popen");
  double micros = 0;
  const int read = std::fscanf(pipe, "%lf", &micros);
  if (pclose(pipe) != 0 || read != 1) {
    return absl::InternalError(absl::StrCat("this failed: ", command));
  }
  return micros;
}

absl::Status Run(const Settings& settings, Report* report) {
  std::printf(
      "python: %s, shm, one server of a shard, async, sgd; one call in flight; %d interleaved "
      "runs, "
      "medians;\nnothing pinned. The limit is the same call in C.\n\n",
      settings.python.c_str(), settings.repeats);
  auto cluster =
      Cluster::Start({.verbenad = settings.verbenad, .wire = {}, .servers = 1, .shards = 1});
  if (!cluster.ok()) return cluster.status();
  for (const Case& c : kCases) {
    Row row = {kBench, absl::StrCat("push_pull of ", c.name), "us", Better::kLower, {}, {}};
    Samples more;
    for (int run = 0; run < settings.repeats; ++run) {
      const auto in_c = InC((*cluster)->address(), c, run);
      if (!in_c.ok()) return in_c.status();
      const auto in_python = InPython(settings, (*cluster)->address(), c, run);
      if (!in_python.ok()) return in_python.status();
      row.value.Add(*in_python);
      row.limit.Add(*in_c);
      more.Add(*in_python - *in_c);
    }
    report->Add(std::move(row));
    std::printf("  %.1f us more than in C (%.1f to %.1f)\n", more.Median(), more.Low(),
                more.High());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("A push_pull from Python, beside the same call in C");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program")->required();
  app.add_option("--python", settings.python, "the interpreter")->required();
  app.add_option("--package", settings.package, "the folder with the package verbena")->required();
  app.add_option("--script", settings.script, "calls.py")->required();
  app.add_option("--repeats", settings.repeats, "interleaved runs")->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  CLI11_PARSE(app, argc, argv);
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Run(settings, &report);
  return report.End("python", status, settings.json);
}
