// Real processes under random faults: `random_faults --help`. This file starts and ends a run; the
// others beside it have the plan, the ledger, clients, cluster, memory and faults.
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/base/process_start.h"
#include "tests/faults/random_faults_client.h"
#include "tests/faults/random_faults_cluster.h"
#include "tests/faults/random_faults_injector.h"
#include "tests/faults/random_faults_ledger.h"
#include "tests/faults/random_faults_memory.h"
#include "tests/faults/random_faults_options.h"
#include "tests/faults/random_faults_plan.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

namespace verbena::test {
namespace {

using Clock = std::chrono::steady_clock;

// SIGINT or SIGTERM came: the run ends, with all of its processes.
volatile sig_atomic_t interrupted = 0;

// A worker process: its clients of the plan and its visitors; the last process has the probe.
int Work(const RandomFaultsCommand& command) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left when the driver is killed
  // Visitors start and end threads all the time. With an arena of malloc() for each, resident
  // memory would grow for a minute without any more of it in use.
  mallopt(M_ARENA_MAX, 1);
  ReturnLargeBlocks();
  Ledger ledger = Ledger::Open(command.ledger);
  const Run run = {command.options, MakePlan(command.options), command.cluster, &ledger};
  if (command.process == run.plan.processes) {
    RunProbe(run);
    return 0;
  }
  std::vector<std::thread> threads;
  for (const ClientPlan& client : run.plan.clients) {
    if (client.process == command.process) {
      threads.emplace_back([&run, &client] { RunClient(run, client); });
    }
  }
  if (run.options.changes) {
    threads.emplace_back([&] { RunVisitors(run, command.process); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

class Driver {
 public:
  explicit Driver(const FaultOptions& options)
      : options_(options),
        plan_(MakePlan(options)),
        ledger_(Ledger::Make(directory_.File("ledger"))),
        cluster_(options_, plan_, directory_.path()),
        memory_(&ledger_, static_cast<uint64_t>(options.slack_mib) << 20),
        start_(Clock::now()) {}

  // Returns whether all was well.
  bool Drive() {
    std::printf("%s", Describe(plan_).c_str());
    std::fflush(stdout);
    const std::string problem = cluster_.StartAll();
    if (!problem.empty()) {
      std::fprintf(stderr, "random_faults %s\n", problem.c_str());
      return false;
    }
    for (const int member : cluster_.members()) {
      memory_.Watch(FaultCluster::NameOf(member), cluster_.process(member).pid());
    }
    StartWorkers();
    FaultInjector injector(options_, &cluster_, &ledger_, &memory_, start_, [this] { Look(); });
    double seconds = 0;
    if (AwaitClients() && injector.AwaitRedundancy(&seconds) && Pause(options_.quiet_s)) {
      memory_.EndQuiet();
      ledger_.Enter(Phase::kRun);
      std::printf("%7.2f s  clients are ready; redundancy is full; %llu calls\n", Since(), Calls());
      std::fflush(stdout);
      injector.Run();
      ledger_.Enter(Phase::kStop);
      if (AwaitWorkers()) Check();
    }
    Summary(injector);
    const bool good = ledger_.Failures().empty();
    if (!good) ReportFailures();
    return good;
  }

 private:
  double Since() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  unsigned long long Calls() const { return ledger_.Calls(); }

  void StartWorkers() {
    std::vector<std::string> argv = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                     "--cluster", cluster_.address(), "--ledger",
                                     directory_.File("ledger")};
    const std::vector<std::string> options = ArgumentsOf(options_);
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--worker", ""});
    for (int i = 0; i < plan_.processes + (options_.probe ? 1 : 0); ++i) {
      argv.back() = absl::StrCat(i);
      workers_.push_back(std::make_unique<Process>(argv));
      memory_.Watch(WorkerName(i), workers_.back()->pid());
    }
  }
  std::string WorkerName(int i) const {
    return i == plan_.processes ? "probe" : absl::StrCat("worker-", i);
  }

  // Reports processes that have ended by themselves, and a run that takes too long.
  void Look() {
    if (ledger_.aborted()) return;
    const std::string ended = cluster_.Ended();
    if (!ended.empty()) ledger_.Fail(ended);
    for (size_t i = 0; i < workers_.size(); ++i) {
      const auto status = workers_[i]->Wait(absl::ZeroDuration());
      if (!status || (*status == 0 && ledger_.phase() == Phase::kStop)) continue;
      ledger_.Fail(absl::StrCat(WorkerName(static_cast<int>(i)), " has ended with exit status ",
                                *status, ": ", workers_[i]->err_end()));
    }
    if (interrupted != 0) ledger_.Fail("interrupted by a signal");
    const int limit = options_.limit_s > 0 ? options_.limit_s : 120 + 20 * options_.faults;
    if (Since() > limit) {
      ledger_.Fail(
          absl::StrCat("the run has not ended after ", limit, " s", ledger_.LongestPending(8)));
    }
  }
  // Until `condition` holds; false: the run is over.
  template <typename F>
  bool Await(F condition) {
    while (!condition()) {
      Look();
      if (ledger_.aborted()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // between looks
    }
    return !ledger_.aborted();
  }
  bool Pause(int seconds) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
    return Await([&] { return Clock::now() >= end; });
  }
  bool AwaitClients() {
    return Await([&] {
      bool ready = !options_.probe || ledger_.memory().probe.ready.load() != 0;
      for (const ClientPlan& client : plan_.clients) {
        ready &= ledger_.client(client.index).ready.load() != 0;
      }
      return ready;
    });
  }
  bool AwaitWorkers() {
    return Await([&] {
      bool ended = true;
      for (const auto& worker : workers_) ended &= !worker->running();
      return ended;
    });
  }

  void Check() {
    for (size_t i = 0; i < workers_.size(); ++i) memory_.Forget(WorkerName(static_cast<int>(i)));
    CheckSums({options_, plan_, cluster_.address(), &ledger_});
    if (ledger_.aborted()) return;
    std::printf("%7.2f s  all sums are exact\n", Since());
    for (const int member : cluster_.members()) memory_.Forget(FaultCluster::NameOf(member));
    const std::string problem = cluster_.End();
    if (!problem.empty()) ledger_.Fail(problem);
    const std::string left = LeftOver();
    if (!left.empty()) ledger_.Fail(absl::StrCat("processes that are left over: ", left));
  }
  // Processes with this run's directory in their command line.
  std::string LeftOver() const {
    std::string left;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
      const std::string command = ReadFile(entry.path().string() + "/cmdline");
      if (command.find(directory_.path()) == std::string::npos) continue;
      absl::StrAppend(&left, entry.path().filename().string(), " ");
    }
    return left;
  }

  void Summary(const FaultInjector& injector) {
    uint64_t expired = 0, longest = 0;
    for (const ClientLedger& client : ledger_.memory().clients) {
      expired += client.expired.load();
      longest = std::max<uint64_t>(longest, client.longest_ms.load());
    }
    const ProbeLedger& probe = ledger_.memory().probe;
    std::printf(
        "%7.2f s  %d faults, %llu calls (%llu ended at a deadline meant to be short or a "
        "cancellation), longest call %.1f s, longest time to redundancy %.2f s\n"
        "           quick calls without a fault: %llu batches, %llu slow beside a waiting call; "
        "largest third quartile %.1f ms alone, %.1f ms beside one\n%s",
        Since(), injector.done(), Calls(), static_cast<unsigned long long>(expired),
        static_cast<double>(longest) / 1000, injector.longest_seconds(),
        static_cast<unsigned long long>(probe.batches.load()),
        static_cast<unsigned long long>(probe.slow.load()),
        static_cast<double>(probe.alone_us.load()) / 1000,
        static_cast<double>(probe.beside_us.load()) / 1000, memory_.Report().c_str());
    std::fflush(stdout);
  }

  void ReportFailures() {
    std::printf("\n%s\n", cluster_.Logs().c_str());
    if (!options_.keep.empty()) cluster_.KeepLogs(options_.keep);
    for (const std::string& failure : ledger_.Failures()) {
      std::printf("FAILED: %s\n", failure.c_str());
    }
    const auto quoted = [](std::string* line, const std::string& argument) {
      const bool plain = absl::string_view(argument).find(' ') == absl::string_view::npos;
      absl::StrAppend(line, plain ? "" : "'", argument, plain ? "" : "'");
    };
    std::printf("replay: random_faults %s\n",
                absl::StrJoin(ArgumentsOf(options_), " ", quoted).c_str());
    std::fflush(stdout);
  }

  FaultOptions options_;
  Plan plan_;
  TemporaryDirectory directory_;
  Ledger ledger_;
  FaultCluster cluster_;
  MemoryWatch memory_;
  std::vector<std::unique_ptr<Process>> workers_;
  Clock::time_point start_;
};

int Main(const std::vector<std::string>& arguments) {
  const RandomFaultsCommand command = ParseRandomFaults(arguments);
  if (command.help) {
    std::printf("%s", RandomFaultsHelp().c_str());
    return 0;
  }
  if (!command.error.empty()) {
    std::fprintf(stderr, "random_faults: %s (see --help)\n", command.error.c_str());
    return 2;
  }
  if (command.process >= 0) return Work(command);
  // In the build: verbenad is two folders above this program's.
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto daemon = program.parent_path().parent_path().parent_path() / "verbenad";
  setenv("VERBENA_VERBENAD", daemon.c_str(), 0);
  if (access(VerbenadPath().c_str(), X_OK) != 0) {
    std::fprintf(stderr,
                 "random_faults: there is no program %s; build it, or set VERBENA_VERBENAD\n",
                 VerbenadPath().c_str());
    return 2;
  }
  for (const int number : {SIGINT, SIGTERM}) {
    signal(number, [](int) { interrupted = 1; });
  }
  return Driver(command.options).Drive() ? 0 : 1;
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  return verbena::test::Main(std::vector<std::string>(argv + 1, argv + argc));
}
