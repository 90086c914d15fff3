// The cost of reading inputs: finding the examples of a file in one pass, and streaming an epoch of
// it in the order of training, beside `cat` of the same file. One reader, and the thread that reads
// ahead for it; the file is in the page cache.
//
//     input [--mib N] [--format TEXT] [--repeats N] [--json FILE]
//
// Every figure is the median of interleaved runs (ours, cat, ours, cat, ...).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "worker/data/input_indexer.h"
#include "worker/data/libsvm_reader.h"
#include "worker/data/streamed_input.h"
#include "worker/train/random.h"
#include "worker/train/schedule.h"

namespace verbena::bench {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMemory = uint64_t{96} << 20;
constexpr uint64_t kBatch = 4096;

struct Settings {
  uint64_t mib = 512;
  std::string format;
  int repeats = 5;
  std::string json;
};

std::string CriteoLine(worker::Random* random) {
  std::string line = random->Below(4) == 0 ? "1" : "0";
  for (int i = 0; i < 13; ++i) absl::StrAppend(&line, "\t", random->Below(2000));
  for (int i = 0; i < 26; ++i) absl::StrAppend(&line, "\t", absl::Hex(random->Below(1u << 31)));
  return line + "\n";
}

std::string LibsvmLine(worker::Random* random) {
  std::string line = random->Below(2) == 0 ? "+1" : "-1";
  uint64_t index = 0;
  for (int i = 0; i < 20; ++i) {
    index += 1 + random->Below(5000);
    absl::StrAppend(&line, " ", index, ":", static_cast<double>(random->Below(1000)) / 1000);
  }
  return line + "\n";
}

// A file with a name that is removed with it.
class TemporaryFile {
 public:
  TemporaryFile() { close(mkstemp(path_.data())); }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

  absl::Status Fill(uint64_t bytes, std::string (*line)(worker::Random*)) const {
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    if (file == nullptr) return absl::UnavailableError("cannot write " + path_);
    worker::Random random(1);
    for (uint64_t done = 0; done < bytes;) {
      const std::string text = line(&random);
      done += std::fwrite(text.data(), 1, text.size(), file);
    }
    return std::fclose(file) == 0 ? absl::OkStatus()
                                  : absl::ResourceExhaustedError("cannot write " + path_);
  }

 private:
  std::string path_ = "/tmp/verbena-bench-input-XXXXXX";
};

double SecondsOf(const std::function<absl::Status()>& work, absl::Status* status) {
  const auto start = steady_clock::now();
  status->Update(work());
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

class Bench {
 public:
  Bench(const Settings& settings, Report* report) : settings_(settings), report_(*report) {}

  absl::Status Run() {
    struct Case {
      const char* name;
      worker::ExampleFormat format;
      std::string (*line)(worker::Random*);
    };
    for (const Case& c : {Case{"criteo", worker::ExampleFormat::kCriteo, &CriteoLine},
                          Case{"libsvm", worker::ExampleFormat::kLibsvm, &LibsvmLine}}) {
      if (!settings_.format.empty() && settings_.format != c.name) continue;
      if (absl::Status status = Measure(c.name, c.format, c.line); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Measure(const std::string& name, worker::ExampleFormat format,
                       std::string (*line)(worker::Random*)) {
    const TemporaryFile file;
    if (absl::Status status = file.Fill(settings_.mib << 20, line); !status.ok()) return status;
    const std::string cat = absl::StrCat("cat ", file.path(), " > /dev/null");
    Row look = {"input", name + ", look through", "MB/s", Better::kHigher, {}, {}};
    Row epoch = {"input", name + ", an epoch", "MB/s", Better::kHigher, {}, {}};
    absl::Status status;
    for (int i = 0; i < settings_.repeats && status.ok(); ++i) {
      worker::Spool spool(0);
      std::shared_ptr<const worker::InputIndex> index;
      const double looked = SecondsOf(
          [&] {
            auto found = worker::InputIndexer::Index({file.path()}, {.format = format}, &spool);
            if (found.ok()) index = *std::move(found);
            return found.status();
          },
          &status);
      if (!status.ok()) break;
      const double megabytes = static_cast<double>(index->bytes()) / 1e6;
      const double streamed = SecondsOf([&] { return Stream(index); }, &status);
      const double limit = SecondsOf(
          [&] {
            return std::system(cat.c_str()) == 0 ? absl::OkStatus()
                                                 : absl::UnavailableError(cat + " failed");
          },
          &status);
      look.value.Add(megabytes / looked);
      look.limit.Add(megabytes / limit);
      epoch.value.Add(megabytes / streamed);
      epoch.limit.Add(megabytes / limit);
    }
    if (!status.ok()) return status;
    report_.Add(std::move(look));
    report_.Add(std::move(epoch));
    return absl::OkStatus();
  }

  static absl::Status Stream(const std::shared_ptr<const worker::InputIndex>& index) {
    const auto set = worker::StreamExamples({index, 0, index->examples()}, kMemory,
                                            worker::LibsvmParser::kMaxIndex);
    if (!set.ok()) return set.status();
    worker::Schedule schedule(index->examples(), kBatch, 1, 0, 1, (*set)->order());
    worker::Schedule ahead = schedule;
    worker::KeyedExamples examples;
    uint64_t announced = 0;
    for (uint64_t step = 0; step < schedule.steps_per_epoch(); ++step) {
      const uint64_t end = std::min(step + schedule.steps_ahead() + 1, schedule.steps_per_epoch());
      for (; announced < end; ++announced) (*set)->WillFetch(ahead.Step(announced).ids);
      absl::Status status = (*set)->Fetch(schedule.Step(step).ids, &examples);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Settings& settings_;
  Report& report_;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  using namespace verbena::bench;
  Settings settings;
  CLI::App app("The cost of reading inputs, beside cat");
  app.add_option("--mib", settings.mib, "Size of the file")->capture_default_str();
  app.add_option("--format", settings.format, "Only this one: criteo, libsvm");
  app.add_option("--repeats", settings.repeats, "Runs")->capture_default_str();
  app.add_option("--json", settings.json, "Write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  std::printf("files of %llu MiB; batches of %llu; %llu MiB of memory for examples\n",
              static_cast<unsigned long long>(settings.mib),
              static_cast<unsigned long long>(kBatch),
              static_cast<unsigned long long>(kMemory >> 20));
  Report report;
  const absl::Status status = Bench(settings, &report).Run();
  return report.End("input", status, settings.json);
}
