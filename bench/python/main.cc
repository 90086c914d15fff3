// The cost of Python: a push_pull of the package verbena, beside the same call in C.
//
//     python --verbenad build/release/verbenad --python /usr/bin/python3
//            --package build/release/python --script bench/python/calls.py
//            --library build/release/bench/libbench_python_calls.so [--json FILE]
//
// Both wait for each call before the next one. One process makes blocks of calls in Python and in C
// in turn, each way with a client, a job and a table of its own: on a busy machine other processes
// slow both blocks of a pair alike.
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad, python, package, script, library, json;
  double share = 1;  // of the pairs of blocks
};

constexpr char kBench[] = "python";

struct Case {
  const char* name;
  const char* memory;  // as calls.py knows it: "empty", "numpy", "torch", "parts"
  uint64_t bytes;
  int calls;  // of a block
  int pairs;  // of blocks
};
constexpr Case kCases[] = {
    {"4 KiB, arrays of empty()", "empty", 4 << 10, 1000, 41},
    {"4 KiB, NumPy arrays", "numpy", 4 << 10, 1000, 41},
    {"4 KiB, tensors", "torch", 4 << 10, 1000, 41},
    {"16 MiB, arrays of empty()", "empty", 16 << 20, 4, 101},
    {"16 MiB, parts of one array of empty()", "parts", 16 << 20, 4, 101},
    {"16 MiB, NumPy arrays", "numpy", 16 << 20, 4, 101},
};

// Adds the pairs of a process: microseconds in Python and in C.
absl::Status Measure(const Settings& settings, const std::string& cluster, const Case& c, Row* row,
                     Samples* more) {
  const std::string command =
      absl::StrCat("PYTHONPATH='", settings.package, "' '", settings.python, "' '", settings.script,
                   "' ", cluster, " '", settings.library, "' ", c.memory, " ", c.bytes, " ",
                   c.calls, " ", std::max(3, static_cast<int>(c.pairs * settings.share)));
  FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, "popen");
  double python = 0, in_c = 0;
  while (std::fscanf(pipe, "%lf %lf", &python, &in_c) == 2) {
    row->value.Add(python);
    row->limit.Add(in_c);
    more->Add(python - in_c);
  }
  if (pclose(pipe) != 0 || more->empty()) {
    return absl::InternalError(absl::StrCat("this failed: ", command));
  }
  return absl::OkStatus();
}

absl::Status Run(const Settings& settings, Report* report) {
  std::printf(
      "python: %s, shm, one server of a shard, async, sgd; one call in flight; nothing pinned.\n"
      "Medians of blocks of calls in Python, each beside a block of the same calls in C in the "
      "same\nprocess, which is the limit.\n\n",
      settings.python.c_str());
  auto cluster =
      Cluster::Start({.verbenad = settings.verbenad, .wire = {}, .servers = 1, .shards = 1});
  if (!cluster.ok()) return cluster.status();
  for (const Case& c : kCases) {
    Row row = {kBench, absl::StrCat("push_pull of ", c.name), "us", Better::kLower, {}, {}};
    Samples more;
    if (absl::Status s = Measure(settings, (*cluster)->address(), c, &row, &more); !s.ok()) {
      return s;
    }
    const double limit = row.limit.Median();
    report->Add(std::move(row));
    std::printf("  %.1f us more than in C beside it, %.2f %%\n", more.Median(),
                100 * more.Median() / limit);
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
  app.add_option("--library", settings.library, "c_calls.cc as a library")->required();
  app.add_option("--share", settings.share, "share of the pairs of blocks")->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Run(settings, &report);
  return report.End("python", status, settings.json);
}
