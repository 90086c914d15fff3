// Runs a fuzz target where there is no libFuzzer: mutates its seeds with a deterministic generator.
//
//   TARGET [--seconds N | --runs N] [--seed S] [--first K]   generate (default: 3 seconds)
//   TARGET FILE...                                           replay inputs
//   TARGET --write-seeds DIR                                 the seeds, as a corpus for libFuzzer
//
// --cpu-seconds T beside --runs: ends after T seconds of processor time, but not before a twentieth
// of the runs.
//
// Run K of seed S is always the same input, so a finding is replayed with --seed S --first K
// --runs 1; its bytes are also left in a file named in the last line printed.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

// Present in sanitized builds only: they end the process without a signal.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace verbena::fuzz {
namespace {

constexpr size_t kMaxInputBytes = 16384;

// SplitMix64 (Steele, Lea, Flood 2014): one multiplication chain, any seed is good.
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t limit) { return limit == 0 ? 0 : Next() % limit; }

 private:
  uint64_t state_;
};

// State for the death handler; written before each run.
struct Current {
  uint64_t seed = 0;
  uint64_t run = 0;
  const std::string* input = nullptr;
  const char* target = "";
} current;

void ReportDeath() {
  if (current.input == nullptr) return;
  char name[256];
  char line[512];
  std::snprintf(name, sizeof(name), "%s.crash", current.target);
  const int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  const bool kept = fd >= 0 && write(fd, current.input->data(), current.input->size()) ==
                                   static_cast<ssize_t>(current.input->size());
  if (fd >= 0) close(fd);
  const int length = std::snprintf(
      line, sizeof(line), "found by run %llu: replay with --seed %llu --first %llu --runs 1%s%s\n",
      static_cast<unsigned long long>(current.run), static_cast<unsigned long long>(current.seed),
      static_cast<unsigned long long>(current.run), kept ? ", or with the file " : "",
      kept ? name : "");
  if (write(STDERR_FILENO, line, static_cast<size_t>(std::max(length, 0))) < 0) return;
}

void OnSignal(int number) {
  ReportDeath();
  signal(number, SIG_DFL);
  raise(number);
}

void CatchDeaths() {
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(ReportDeath);
}

void Overwrite(std::string* s, Generator* g) {
  constexpr uint64_t kInteresting[] = {0,       1,      2,          0x7f,       0x80,
                                       0xff,    0x7fff, 0x8000,     0xffff,     0x7fffffff,
                                       1 << 20, 4096,   0x80000000, 0xffffffff, ~uint64_t{0}};
  // One call a statement: the order in which a compiler evaluates operands is its own.
  uint64_t value = g->Next();
  if (g->Below(3) != 0) {
    value = kInteresting[value % std::size(kInteresting)];
    value -= g->Below(2);
  }
  const size_t bytes = size_t{1} << g->Below(4);
  if (s->size() < bytes) return;
  // Fields are aligned more often than not.
  size_t at = g->Below(s->size() - bytes + 1);
  if (g->Below(4) != 0) at -= at % bytes;
  std::memcpy(s->data() + at, &value, bytes);
}

void Mutate(std::string* s, const std::vector<std::string>& corpus, Generator* g) {
  const size_t at = g->Below(s->size() + 1);
  const size_t length = 1 + g->Below(16);
  switch (g->Below(7)) {
    case 0:
      if (at < s->size()) (*s)[at] ^= static_cast<char>(1 << length % 8);
      break;
    case 1:
    case 2:
      Overwrite(s, g);
      break;
    case 3:
      s->insert(at, length, static_cast<char>(g->Next()));
      break;
    case 4:
      s->erase(at, length);
      break;
    case 5:
      s->resize(at);
      break;
    case 6: {
      const std::string& other = corpus[g->Below(corpus.size())];
      const size_t from = g->Below(other.size() + 1);
      s->append(other, from, g->Below(other.size() - from + 1));
      break;
    }
  }
}

std::string Generate(const std::vector<std::string>& corpus, uint64_t seed, uint64_t run) {
  Generator g(seed * 0x9e3779b97f4a7c15u + run);
  std::string input = corpus[g.Below(corpus.size())];
  if (g.Below(16) == 0) {
    for (char& c : input) c = static_cast<char>(g.Next());
  }
  for (uint64_t n = g.Below(6); n > 0; --n) Mutate(&input, corpus, &g);
  if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
  return input;
}

void RunOne(const std::string& input) {
  current.input = &input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  current.input = nullptr;
}

int Replay(const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", name.c_str());
      return 2;
    }
    RunOne(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  std::printf("replayed %zu inputs\n", files.size());
  return 0;
}

int WriteSeeds(const std::vector<std::string>& corpus, const std::string& directory) {
  for (size_t i = 0; i < corpus.size(); ++i) {
    const std::string name = directory + "/seed-" + std::to_string(i);
    std::ofstream file(name, std::ios::binary);
    file << corpus[i];
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", name.c_str());
      return 2;
    }
  }
  return 0;
}

struct Options {
  double seconds = 3;
  uint64_t runs = 0;       // 0: by time
  double cpu_seconds = 0;  // 0: all runs
  uint64_t seed = 1;
  uint64_t first = 0;
  std::string seeds_directory;
  std::vector<std::string> files;
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      options->files.push_back(name);
      continue;
    }
    if (++i == argc) return false;
    const char* value = argv[i];
    if (name == "--seconds") {
      options->seconds = std::strtod(value, nullptr);
    } else if (name == "--runs") {
      options->runs = std::strtoull(value, nullptr, 10);
    } else if (name == "--cpu-seconds") {
      options->cpu_seconds = std::strtod(value, nullptr);
    } else if (name == "--seed") {
      options->seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--first") {
      options->first = std::strtoull(value, nullptr, 10);
    } else if (name == "--write-seeds") {
      options->seeds_directory = value;
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: %s [--seconds N | --runs N [--cpu-seconds T]] [--seed S] [--first K] | FILE... | "
        "--write-seeds DIR\n",
        argv[0]);
    return 2;
  }
  const std::string path = argv[0];
  const std::string target = path.substr(path.find_last_of('/') + 1);
  current.target = target.c_str();
  CatchDeaths();
  const std::vector<std::string> corpus = Seeds();
  if (!options.seeds_directory.empty()) return WriteSeeds(corpus, options.seeds_directory);
  if (!options.files.empty()) return Replay(options.files);

  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto goes_on = [&options, &elapsed](uint64_t runs) {
    if (options.runs == 0) return elapsed() < options.seconds;
    if (runs >= options.runs) return false;
    const double used = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    return options.cpu_seconds == 0 || used < options.cpu_seconds || runs < options.runs / 20;
  };
  current.seed = options.seed;
  uint64_t run = options.first;
  for (const std::string& seed : corpus) RunOne(seed);
  while (goes_on(run - options.first)) {
    current.run = run;
    RunOne(Generate(corpus, options.seed, run));
    ++run;
  }
  std::printf("%s: %llu runs of seed %llu in %.1f s, no findings\n", target.c_str(),
              static_cast<unsigned long long>(run - options.first),
              static_cast<unsigned long long>(options.seed), elapsed());
  return 0;
}

}  // namespace
}  // namespace verbena::fuzz

int main(int argc, char** argv) { return verbena::fuzz::Main(argc, argv); }
