// The cost of training through servers: verbena-train with its parameters in servers, beside the
// same trainer with them in its own memory (--local).
//
//     end_to_end --verbenad build/release/verbenad --train build/release/verbena-train
//                [--a9a FILE] [--json FILE]
//
// Steps a second are the trainer's own, of its training alone; medians of interleaved runs.
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad;
  std::string train;
  std::string transport = "shm";
  std::string a9a;
  std::string json;
  int repeats = 5;
};

constexpr char kBench[] = "end_to_end";
constexpr int kServers = 2;  // of a shard each

// A folder of made-up data, gone with this.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "verbena-bench.XXXXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// As many examples and features as a9a has, 14 of 123 in each; labels by a linear rule.
void WriteLikeA9a(const std::string& path) {
  std::mt19937_64 random(1);
  std::ofstream file(path);
  for (int i = 0; i < 32'561; ++i) {
    std::set<uint64_t> features;
    while (features.size() < 14) features.insert(1 + random() % 123);
    uint64_t sum = 0;
    for (const uint64_t feature : features) sum += feature;
    file << (sum > 14 * 62 ? "+1" : "-1");
    for (const uint64_t feature : features) file << ' ' << feature << ":1";
    file << '\n';
  }
}

// The licence texts that every Debian machine has, one after the other.
void WriteText(const std::string& path) {
  std::set<std::string> files;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/usr/share/common-licenses", error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) files.insert(entry.path());
  }
  std::ofstream out(path);
  for (const std::string& name : files) out << std::ifstream(name).rdbuf();
}

// A number by its name in a run's JSON output.
double NumberIn(const std::string& json, const std::string& name) {
  const size_t key = json.find("\"" + name + "\"");
  const size_t colon = json.find(':', key);
  if (key == std::string::npos || colon == std::string::npos) return 0;
  return std::strtod(json.c_str() + colon + 1, nullptr);
}

struct Trained {
  double steps_per_second = 0;
  double bytes_per_step = 0;  // pushed and pulled, of all workers
};
absl::StatusOr<Trained> Train(const Settings& settings, const std::string& arguments) {
  const std::string command =
      absl::StrCat("'", settings.train, "' ", arguments, " --json 2>/dev/null");
  FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, "popen");
  std::string json;
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof part, pipe)) > 0;) json.append(part, n);
  if (pclose(pipe) != 0) return absl::InternalError(absl::StrCat("this failed: ", command));
  const double steps = NumberIn(json, "steps");
  const double seconds = NumberIn(json, "seconds");
  if (steps <= 0 || seconds <= 0) return absl::InternalError("no steps in: " + json);
  return Trained{steps / seconds,
                 (NumberIn(json, "bytes_pushed") + NumberIn(json, "bytes_pulled")) / steps};
}

struct Model {
  const char* name;
  std::string arguments;
};

absl::Status Compare(const Settings& settings, const Cluster& cluster, const Model& model,
                     Report* report) {
  std::map<int, Row> rows;
  std::map<int, double> bytes;
  for (const int workers : {1, 2}) {
    rows[workers] = {kBench,
                     absl::StrCat(model.name, ", ", workers, workers == 1 ? " worker" : " workers",
                                  " of --local"),
                     "steps/s",
                     Better::kHigher,
                     {},
                     {}};
  }
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    const auto local = Train(settings, model.arguments + " --local");
    if (!local.ok()) return local.status();
    for (auto& [workers, row] : rows) {
      const auto trained = Train(
          settings, absl::StrCat(model.arguments, " --cluster ", cluster.address(), " --transport ",
                                 settings.transport, " --workers ", workers));
      if (!trained.ok()) return trained.status();
      row.value.Add(trained->steps_per_second);
      row.limit.Add(local->steps_per_second);
      bytes[workers] = trained->bytes_per_step;
    }
  }
  for (auto& [workers, row] : rows) {
    report->Add(std::move(row));
    std::printf("  %.4g bytes pushed and pulled a step, of all workers\n", bytes[workers]);
  }
  return absl::OkStatus();
}

absl::Status Run(const Settings& settings, Report* report) {
  const Folder folder;
  std::string examples = settings.a9a;
  if (examples.empty()) WriteLikeA9a(examples = folder.File("a9a-like"));
  const std::string text = folder.File("text");
  WriteText(text);
  std::printf(
      "end_to_end: %s, %d servers of a shard, sync, adam; %d interleaved runs, medians; nothing "
      "pinned.\n--local is one process; a step is as many examples with any number of workers. "
      "Logistic regression on\n%s, 123 weights, 256 examples a step; the text model of "
      "verbena-train's defaults on licence texts,\n1024 bytes a step. %u CPUs.\n\n",
      settings.transport.c_str(), kServers, settings.repeats,
      settings.a9a.empty() ? "made-up data of a9a's size" : "a9a",
      std::thread::hardware_concurrency());
  auto cluster = Cluster::Start({.verbenad = settings.verbenad,
                                 .wire = {.transport = settings.transport, .device = {}},
                                 .servers = kServers,
                                 .shards = 1});
  if (!cluster.ok()) return cluster.status();
  const Model models[] = {
      {"logistic", absl::StrCat("--format libsvm --data '", examples, "' --steps 4000")},
      {"text", absl::StrCat("--format text --data '", text, "' --holdout 0.1 --steps 60")},
  };
  for (const Model& model : models) {
    if (absl::Status status = Compare(settings, **cluster, model, report); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("Training with parameters in servers, beside the same with them in its own memory");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program")->required();
  app.add_option("--train", settings.train, "the trainer's program")->required();
  app.add_option("--transport", settings.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}))
      ->capture_default_str();
  app.add_option("--a9a", settings.a9a,
                 "the a9a data set, a libsvm file; default: made-up examples, as many and as large")
      ->check(CLI::ExistingFile);
  app.add_option("--repeats", settings.repeats, "interleaved runs of each")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Run(settings, &report);
  return report.End("end_to_end", status, settings.json);
}
