#include "bench/perftest.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace verbena::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kStartPatience(20000);  // until the server listens: programs start slowly
constexpr milliseconds kEndPatience(30000);    // beyond the time to be measured
constexpr int kMarginSeconds = 1;              // not measured at either end of a run
constexpr double kMebibyte = 1048576.0;

constexpr int kEveryCpu = -1;

// The calling thread, and its children, may run on that processor while this lives: the benchmark's
// own thread may be pinned.
class RunningOn {
 public:
  explicit RunningOn(int cpu) {
    known_ = sched_getaffinity(0, sizeof before_, &before_) == 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned c = 0; c < CPU_SETSIZE; ++c) {
      if (cpu == kEveryCpu || c == static_cast<unsigned>(cpu)) CPU_SET(c, &set);
    }
    // Where there are fewer CPUs the run is still valid, only not placed.
    (void)sched_setaffinity(0, sizeof set, &set);
  }
  ~RunningOn() {
    if (known_) (void)sched_setaffinity(0, sizeof before_, &before_);
  }
  RunningOn(const RunningOn&) = delete;
  RunningOn& operator=(const RunningOn&) = delete;

 private:
  cpu_set_t before_ = {};
  bool known_ = false;
};

// A program whose output is kept in memory; killed when it is dropped while it runs.
class Child {
 public:
  Child() = default;
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (output_ >= 0) close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  absl::Status Start(const std::vector<std::string>& arguments, int cpu);
  // True once it has ended, within `patience`.
  bool AwaitEnd(milliseconds patience);
  bool Succeeded() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }
  std::string Output() const;

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  int status_ = 0;
};

absl::Status Child::Start(const std::vector<std::string>& arguments, int cpu) {
  output_ = memfd_create("perftest-output", MFD_CLOEXEC);
  if (output_ < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  // None outlives a benchmark that was killed.
  std::vector<std::string> all = {"setpriv", "--pdeathsig", "KILL"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);

  // Not fork(): that copies every page that is registered with a device, and fails where those are
  // huge pages and there are not as many again.
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, output_, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output_, STDERR_FILENO);
  const RunningOn there(cpu);
  const int error = posix_spawnp(&pid_, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return absl::OkStatus();
  pid_ = -1;
  return absl::ErrnoToStatus(error, "posix_spawnp setpriv (of util-linux)");
}

bool Child::AwaitEnd(milliseconds patience) {
  const auto until = steady_clock::now() + patience;
  while (pid_ > 0) {
    if (waitpid(pid_, &status_, WNOHANG) == pid_) {
      pid_ = -1;
    } else if (steady_clock::now() > until) {
      return false;
    } else {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  return true;
}

std::string Child::Output() const {
  std::string text;
  char buffer[4096];
  off_t at = 0;
  for (ssize_t n; (n = pread(output_, buffer, sizeof buffer, at)) > 0; at += n) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

// A TCP port nobody listens on now.
absl::StatusOr<uint16_t> FreePort() {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return absl::ErrnoToStatus(errno, "socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = bind(probe, generic, length) == 0 && getsockname(probe, generic, &length) == 0;
  const int error = errno;
  close(probe);
  if (!found) return absl::ErrnoToStatus(error, "no free TCP port");
  return ntohs(address.sin_port);
}

// Whether somebody listens on the port. Looked up, not tried: a server takes one connection.
bool Listening(uint16_t port) {
  char wanted[8];
  std::snprintf(wanted, sizeof wanted, ":%04X", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (state == "0A" && local.ends_with(wanted)) return true;  // 0A: TCP_LISTEN (proc(5))
    }
  }
  return false;
}

absl::Status Failed(const std::vector<std::string>& command, const char* what, const Child& server,
                    const Child& client) {
  return absl::UnavailableError(absl::StrCat(absl::StrJoin(command, " "), ": ", what,
                                             "; output of the server:\n", server.Output(),
                                             "output of the client:\n", client.Output()));
}

// Runs server and client; returns the client's output.
absl::StatusOr<std::string> RunPair(const PerftestOptions& options,
                                    std::vector<std::string> command, milliseconds lasts) {
  if (absl::Status status = FindPerftest(); !status.ok()) return status;
  const auto port = FreePort();
  if (!port.ok()) return port.status();
  command.insert(command.end(), {"-F", "-p", absl::StrCat(*port)});
  if (!options.device.empty()) {
    const size_t colon = options.device.find(':');
    command.insert(command.end(), {"-d", options.device.substr(0, colon)});
    if (colon != std::string::npos) {
      command.insert(command.end(), {"-i", options.device.substr(colon + 1)});
    }
  }
  command.insert(command.end(), options.extra.begin(), options.extra.end());

  Child server;
  Child client;
  if (absl::Status status = server.Start(command, options.placed ? 1 : kEveryCpu); !status.ok())
    return status;
  const auto until = steady_clock::now() + kStartPatience;
  while (!Listening(*port)) {
    if (server.AwaitEnd(milliseconds(10)) || steady_clock::now() > until) {
      return Failed(command, "the server does not listen", server, client);
    }
  }
  command.emplace_back("127.0.0.1");
  if (absl::Status status = client.Start(command, options.placed ? 0 : kEveryCpu); !status.ok())
    return status;
  if (!client.AwaitEnd(lasts + kEndPatience)) {
    return Failed(command, "took too long and was killed", server, client);
  }
  const bool ended = server.AwaitEnd(kEndPatience);
  if (!client.Succeeded() || !ended) return Failed(command, "failed", server, client);
  return client.Output();
}

absl::StatusOr<RoundTrip> Latency(const PerftestOptions& options,
                                  const std::vector<std::string>& command, int rounds) {
  // A round trip of 10 ms is far beyond all of these measurements.
  const auto output = RunPair(options, command, milliseconds(10) * rounds);
  if (!output.ok()) return output.status();
  // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
  const auto row = LastRow(*output, "t_typical[usec]", 8);
  if (!row.ok()) return row.status();
  return RoundTrip{2 * (*row)[4], 2 * (*row)[7]};
}

}  // namespace

absl::Status FindPerftest() {
  std::istringstream folders(getenv("PATH") == nullptr ? "" : getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/ib_write_bw").c_str(), X_OK) == 0) return absl::OkStatus();
  }
  return absl::NotFoundError(
      "ib_write_bw is not installed: it is the limit that verbs is held against (Debian: apt-get "
      "install perftest)");
}

absl::StatusOr<std::vector<double>> LastRow(const std::string& output, const std::string& column,
                                            size_t count) {
  std::istringstream lines(output);
  std::vector<double> last;
  bool head = false;
  for (std::string line; std::getline(lines, line);) {
    head = head || line.find(column) != std::string::npos;
    std::istringstream fields(line);
    std::vector<double> row;
    for (double value; fields >> value;) row.push_back(value);
    if (head && row.size() >= count && fields.eof()) last = std::move(row);
  }
  if (last.empty()) {
    return absl::InternalError(absl::StrCat("no row below a column \"", column,
                                            "\" in the output of perftest:\n", output));
  }
  return last;
}

absl::StatusOr<double> WriteMegabytes(const PerftestOptions& options, size_t bytes, int seconds,
                                      Direction direction) {
  std::vector<std::string> command = {"ib_write_bw",
                                      "-s",
                                      absl::StrCat(bytes),
                                      "-D",
                                      absl::StrCat(seconds + 2 * kMarginSeconds),
                                      "-f",
                                      absl::StrCat(kMarginSeconds)};
  if (direction == Direction::kBoth) command.emplace_back("-b");
  const auto output = RunPair(options, command, std::chrono::seconds(seconds + 2 * kMarginSeconds));
  if (!output.ok()) return output.status();
  // #bytes #iterations peak average message-rate
  const auto row = LastRow(*output, "BW average[MB/sec]", 5);
  if (!row.ok()) return row.status();
  return (*row)[3] * kMebibyte / 1e6;
}

absl::StatusOr<RoundTrip> SendRoundTrip(const PerftestOptions& options, size_t bytes, int rounds,
                                        Waiting waiting) {
  std::vector<std::string> command = {"ib_send_lat", "-s", absl::StrCat(bytes), "-n",
                                      absl::StrCat(rounds)};
  if (waiting == Waiting::kEvents) command.emplace_back("-e");
  return Latency(options, command, rounds);
}

absl::StatusOr<RoundTrip> WriteRoundTrip(const PerftestOptions& options, size_t bytes, int rounds) {
  return Latency(options, {"ib_write_lat", "-s", absl::StrCat(bytes), "-n", absl::StrCat(rounds)},
                 rounds);
}

}  // namespace verbena::bench
