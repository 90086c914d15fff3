// A cluster that trains among hostile peers: `hostile --help`. hostile_peer.h has the peers,
// hostile_honest.h the users that must be served, hostile_watch.h the bounds.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/base/process_start.h"
#include "tests/faults/hostile_honest.h"
#include "tests/faults/hostile_peer.h"
#include "tests/faults/hostile_watch.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

namespace verbena::test {
namespace {

struct Command {
  uint64_t seed = 1;
  int seconds = 20;
  int peers = 3;
  int longest_ms = 3000;
  std::string only;
  bool help = false;
  std::string error;
  // The options of a peer process, which this program starts.
  std::string peer;  // lists, with spaces between: its options
};

volatile sig_atomic_t interrupted = 0;

std::string Help() {
  return absl::StrCat(
      "usage: hostile [OPTION VALUE]...\n\n"
      "Runs a cluster of two servers with a job that trains, a quick job, heartbeats and health "
      "probes.\n"
      "Peers send random sequences of valid and invalid calls, connections and handshakes, with "
      "several\n"
      "tokens and none; some are killed in the middle. Fails when a sum is not exact, a user is "
      "not\n"
      "served in time, a daemon takes more than its bounds, or keeps it once the peers are "
      "gone.\n\n"
      "  --seed N        of the sequences (1)\n"
      "  --seconds N     with hostile peers (20)\n"
      "  --peers N       at the same time (3)\n"
      "  --longest-ms N  that a call of an honest user may take (3000)\n"
      "  --only ACTION   no other: ",
      absl::StrJoin(HostilePeer::Actions(), ", "), "\n");
}

Command Parse(int argc, char** argv) {
  Command command;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      command.help = true;
      return command;
    }
    if (i + 1 == argc) {
      command.error = name + ": wanted: an option of --help, with a value";
      return command;
    }
    const std::string value = argv[++i];
    bool good = true;
    if (name == "--seed") {
      good = absl::SimpleAtoi(value, &command.seed);
    } else if (name == "--seconds") {
      good = absl::SimpleAtoi(value, &command.seconds) && command.seconds > 0;
    } else if (name == "--peers") {
      good = absl::SimpleAtoi(value, &command.peers) && command.peers > 0;
    } else if (name == "--longest-ms") {
      good = absl::SimpleAtoi(value, &command.longest_ms) && command.longest_ms > 0;
    } else if (name == "--only") {
      command.only = value;
      const std::vector<std::string> actions = HostilePeer::Actions();
      good = std::find(actions.begin(), actions.end(), value) != actions.end();
    } else if (name == "--peer") {
      command.peer = value;
    } else {
      command.error = name + ": not an option (see --help)";
    }
    if (!good) command.error = absl::StrCat(name, " is '", value, "' (see --help)");
  }
  return command;
}

// The options of a peer, in one argument.
std::string PeerArgument(const HostileOptions& options) {
  return absl::StrJoin(
      {options.cluster, absl::StrJoin(options.controls, ","), absl::StrJoin(options.metrics, ","),
       absl::StrJoin(options.tokens, ","), options.job_token},
      " ");
}

int BePeer(const Command& command) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<std::string> parts = absl::StrSplit(command.peer, ' ');
  if (parts.size() != 5) return 2;
  HostilePeer peer({.seed = command.seed,
                    .cluster = parts[0],
                    .controls = absl::StrSplit(parts[1], ','),
                    .metrics = absl::StrSplit(parts[2], ','),
                    .tokens = absl::StrSplit(parts[3], ','),
                    .job_token = parts[4],
                    .only = command.only});
  peer.Run(absl::Seconds(command.seconds));
  std::printf("%s", peer.Report().c_str());
  std::fflush(stdout);
  std::_Exit(0);  // as peers end: nothing is closed in order
}

class Driver {
 public:
  explicit Driver(const Command& command)
      : command_(command),
        draw_(command.seed),
        start_(absl::Now()),
        watch_([this](const std::string& what) { Fail(what); }) {}

  bool Drive() {
    if (StartCluster() && MakeTokens()) Attack();
    std::printf("%s%s", users_ ? users_->Times().c_str() : "", watch_.Report().c_str());
    Outcomes();
    users_.reset();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& failure : failures_) std::printf("FAILED: %s\n", failure.c_str());
    if (failures_.empty()) return true;
    for (const auto& daemon : daemons_) std::printf("--- %s\n", daemon->err_end().c_str());
    std::printf("replay: hostile --seed %llu --seconds %d --peers %d%s\n",
                static_cast<unsigned long long>(command_.seed), command_.seconds, command_.peers,
                command_.only.empty() ? "" : (" --only " + command_.only).c_str());
    return false;
  }

 private:
  void Fail(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failures_.size() < 20) {
      failures_.push_back(
          absl::StrCat("after ", absl::FormatDuration(absl::Now() - start_), ": ", what));
    }
  }
  bool failed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !failures_.empty();
  }

  std::string StartDaemon(const std::string& name, std::vector<std::string> more) {
    const std::string ready = directory_.File("ready-" + name);
    std::vector<std::string> argv = {VerbenadPath(),
                                     "--name",
                                     name,
                                     "--listen",
                                     "127.0.0.1:0",
                                     "--metrics",
                                     "127.0.0.1:0",
                                     "--shards",
                                     "1",
                                     "--memory-limit",
                                     absl::StrCat(256 << 20),
                                     "--transport",
                                     "auto",
                                     "--ready-file",
                                     ready,
                                     "--audit-log",
                                     directory_.File("audit-" + name)};
    argv.insert(argv.end(), more.begin(), more.end());
    daemons_.push_back(std::make_unique<Process>(argv));
    Process& process = *daemons_.back();
    Eventually([&] { return !ReadFile(ready).empty() || !process.running(); }, absl::Seconds(60));
    const std::string text = ReadFile(ready);
    if (text.empty()) {
      Fail(absl::StrCat(name, " does not become ready: ", process.err_end()));
      return "";
    }
    watch_.Add(name, process.pid(), directory_.File("audit-" + name));
    peer_.controls.push_back(JsonField(text, "address"));
    peer_.metrics.push_back(JsonField(text, "metrics"));
    return peer_.controls.back();
  }
  bool StartCluster() {
    peer_.cluster =
        StartDaemon("first", {"--coordinator", "--state", directory_.File("state"), "--lease-ms",
                              "4000", "--expected-servers", "2", "--replicas", "2", "--partitions",
                              "16", "--operator-token-file", directory_.File("operator")});
    if (peer_.cluster.empty()) return false;
    return MakeToken("server", {"--role", "server"}) &&
           !StartDaemon("second", {"--join", peer_.cluster, "--token-file", File("server")})
                .empty();
  }
  bool Operate(std::vector<std::string> command) {
    command.insert(command.begin(), {CliPath(), "--cluster", peer_.cluster, "--token-file",
                                     directory_.File("operator")});
    const Finished finished = RunProgram(command);
    if (finished.status != 0) Fail(absl::StrJoin(command, " ") + ": " + finished.err);
    return finished.status == 0;
  }
  std::string File(const std::string& name) const { return directory_.File(name); }
  bool MakeToken(const std::string& name, std::vector<std::string> options) {
    options.insert(options.begin(), {"token", "create", "--out", File(name)});
    return Operate(options);
  }
  bool MakeTokens() {
    WriteFile(File("wrong"), "vbt_0123456789ab_" + std::string(43, 'x') + "\n");
    WriteFile(File("strange"), std::string(4000, 'y') + "\n");
    peer_.job_token = File("job");
    peer_.tokens = {"",
                    File("job"),
                    File("job"),
                    File("other"),
                    File("reader"),
                    File("revoked"),
                    File("wrong"),
                    File("strange")};
    return MakeToken("job", {"--role", "job", "--job", kHostileJob}) &&
           MakeToken("other", {"--role", "job", "--job", "other"}) &&
           MakeToken("reader", {"--role", "read-only"}) &&
           MakeToken("revoked", {"--role", "job", "--job", kHostileJob}) &&
           Operate({"token", "revoke", ReadFile(File("revoked")).substr(4, 12)}) &&
           Operate(
               {"limits", kHostileJob, "--memory", "32MiB", "--tables", "20", "--lanes", "16"}) &&
           Operate({"limits", "other", "--memory", "8MiB", "--tables", "5", "--lanes", "4"});
  }

  void Attack() {
    users_.emplace(HonestUsers::Options{.cluster = peer_.cluster,
                                        .operator_token = File("operator"),
                                        .metrics = peer_.metrics,
                                        .longest = absl::Milliseconds(command_.longest_ms),
                                        .fail = [this](const std::string& what) { Fail(what); }});
    if (!users_->Start()) Fail("not all honest users are served");
    Pause(absl::Seconds(3));
    std::printf("%6.1f s  quiet, %llu steps:\n%s", Since(), Steps(), users_->Times().c_str());
    std::fflush(stdout);
    watch_.Begin();
    const absl::Time end = absl::Now() + absl::Seconds(command_.seconds);
    absl::Time look = absl::Now() + absl::Seconds(60);
    while (absl::Now() < end && !failed()) {
      TurnPeers(end);
      Pause(absl::Milliseconds(20));
      if (absl::Now() < look) continue;
      look += absl::Seconds(60);
      std::printf("%6.1f s  %llu steps, %d peers so far\n%s", Since(), Steps(), peers_begun_,
                  watch_.Report().c_str());
      std::fflush(stdout);
    }
    for (Peer& peer : peers_) End(&peer);
    peers_.clear();
    if (failed()) return;
    std::printf("%6.1f s  hostile, %llu steps, %d peers:\n%s", Since(), Steps(), peers_begun_,
                users_->Times().c_str());
    std::fflush(stdout);
    AwaitBack();
    std::printf("%6.1f s  afterwards:\n", Since());
    const std::string wrong = users_->Stop();
    if (!wrong.empty()) Fail(wrong);
    StopCluster();
  }
  // Leases of hostile members end, their lanes and tables go.
  void AwaitBack() {
    std::string not_back;
    const bool back = Eventually(
        [&] {
          Pause(absl::Milliseconds(500));
          not_back = watch_.NotBack();
          return not_back.empty() || failed();
        },
        absl::Seconds(30));
    if (!back) Fail(absl::StrCat("30 s after the last peer:\n", not_back));
  }
  void StopCluster() {
    for (auto daemon = daemons_.rbegin(); daemon != daemons_.rend(); ++daemon) {
      (*daemon)->Signal(SIGTERM);
      const std::optional<int> status = (*daemon)->Wait(absl::Seconds(30));
      if (status != 0) {
        Fail(absl::StrCat("a daemon ends with ", status.value_or(-1), ": ", (*daemon)->err_end()));
      }
    }
  }

  struct Peer {
    std::unique_ptr<Process> process;
    absl::Time kill;
  };
  // Keeps as many as are wanted, each for some seconds; half of them are killed.
  void TurnPeers(absl::Time end) {
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      if (peer->process->running() && absl::Now() < peer->kill) {
        ++peer;
        continue;
      }
      End(&*peer);
      peer = peers_.erase(peer);
    }
    while (static_cast<int>(peers_.size()) < command_.peers && absl::Now() < end) {
      const uint64_t seconds = draw_.Between(2, 8);
      const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
      std::vector<std::string> argv = {self,
                                       "--peer",
                                       PeerArgument(peer_),
                                       "--seed",
                                       absl::StrCat(command_.seed * 1'000'000 + peers_begun_++),
                                       "--seconds",
                                       absl::StrCat(seconds)};
      if (!command_.only.empty()) argv.insert(argv.end(), {"--only", command_.only});
      const absl::Duration life = draw_.OneIn(2)
                                      ? absl::Milliseconds(draw_.Between(200, 1000 * seconds))
                                      : absl::Seconds(seconds + 15);
      peers_.push_back({std::make_unique<Process>(argv), absl::Now() + life});
    }
    for (const auto& daemon : daemons_) {
      if (!daemon->running()) Fail("a daemon has ended: " + daemon->err_end());
    }
    if (interrupted != 0) Fail("interrupted by a signal");
  }
  void End(Peer* peer) {
    if (peer->process->running()) {
      peer->process->Signal(SIGKILL);
      peer->process->Wait();
    } else if (const auto status = peer->process->Wait(); status != 0) {
      // A fault of this program, not of the cluster; it must not go unseen.
      Fail(absl::StrCat("a peer ends with ", status.value_or(-1), ": ", peer->process->err_end()));
    }
    for (const absl::string_view line :
         absl::StrSplit(peer->process->out(), '\n', absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      for (size_t i = 1; i < words.size(); ++i) {
        const std::vector<std::string> pair = absl::StrSplit(words[i], '=');
        uint64_t count = 0;
        if (pair.size() == 2 && absl::SimpleAtoi(pair[1], &count)) {
          outcomes_[words[0]][pair[0]] += count;
        }
      }
    }
  }
  void Outcomes() const {
    std::printf("of peers that ended by themselves:\n");
    for (const auto& [action, counts] : outcomes_) {
      std::printf("  %s:", action.c_str());
      for (const auto& [outcome, count] : counts) {
        std::printf(" %s %llu", outcome.c_str(), static_cast<unsigned long long>(count));
      }
      std::printf("\n");
    }
  }

  void Pause(absl::Duration time) { absl::SleepFor(time); }
  double Since() const { return absl::ToDoubleSeconds(absl::Now() - start_); }
  unsigned long long Steps() const { return users_->steps(); }

  const Command command_;
  Draw draw_;
  const absl::Time start_;
  std::mutex mutex_;
  std::vector<std::string> failures_;  // guarded by mutex_
  TemporaryDirectory directory_;
  HostileWatch watch_;
  std::vector<std::unique_ptr<Process>> daemons_;
  HostileOptions peer_;
  std::optional<HonestUsers> users_;
  std::vector<Peer> peers_;
  int peers_begun_ = 0;
  std::map<std::string, std::map<std::string, uint64_t>> outcomes_;
};

int Main(int argc, char** argv) {
  const Command command = Parse(argc, argv);
  if (command.help) {
    std::printf("%s", Help().c_str());
    return 0;
  }
  if (!command.error.empty()) {
    std::fprintf(stderr, "hostile: %s\n", command.error.c_str());
    return 2;
  }
  RaiseDescriptorLimit();
  if (!command.peer.empty()) return BePeer(command);
  // In the build: the programs are two folders above this one.
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto build = program.parent_path().parent_path().parent_path();
  setenv("VERBENA_VERBENAD", (build / "verbenad").c_str(), 0);
  setenv("VERBENA_CLI", (build / "verbena").c_str(), 0);
  for (const std::string& path : {VerbenadPath(), CliPath()}) {
    if (access(path.c_str(), X_OK) == 0) continue;
    std::fprintf(stderr, "hostile: there is no program %s; build it\n", path.c_str());
    return 2;
  }
  for (const int number : {SIGINT, SIGTERM}) {
    signal(number, [](int) { interrupted = 1; });
  }
  return Driver(command).Drive() ? 0 : 1;
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) { return verbena::test::Main(argc, argv); }
