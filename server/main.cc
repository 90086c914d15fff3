// verbenad: a server of a Verbena cluster.
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/base/process_start.h"
#include "proto/base/whole_file.h"
#include "rdma/base/clock.h"
#include "server/access/grpc_log.h"
#include "server/cli/options.h"
#include "server/control/grpc_server.h"
#include "server/free_heap.h"
#include "server/log/line_sink.h"
#include "server/node.h"

namespace verbena::server {
namespace {

void ConfigureLogging(const std::string& level) {
  auto logger =
      std::make_shared<spdlog::logger>("verbenad", std::make_shared<LineSink>(STDERR_FILENO));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %L %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
  InstallGrpcLog();
}

absl::Status WriteReadyFile(const std::string& path, const VerbenaNode& node) {
  absl::StatusOr<std::unique_ptr<WholeFile>> file = WholeFile::Open(path);
  if (!file.ok()) return file.status();
  std::fprintf((*file)->stream(),
               "{\"address\": \"%s\", \"metrics\": \"%s\", \"pid\": %d, \"incarnation\": %llu}\n",
               node.address().c_str(), node.metrics_address().c_str(), getpid(),
               static_cast<unsigned long long>(node.incarnation()));
  return (*file)->Commit();
}

// A file of an earlier process names an address where no server listens any more.
absl::Status RemoveReadyFile(const std::string& path) {
  return path.empty() ? absl::OkStatus() : WholeFile::Remove(path);
}

// Whether standard input has ended; discards its bytes. Does not block.
bool StdinEnded() {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, 0) <= 0) return false;
  char discarded[4096];
  const ssize_t bytes = read(STDIN_FILENO, discarded, sizeof(discarded));
  return bytes == 0 || (bytes < 0 && errno != EINTR && errno != EAGAIN);
}

timespec Milliseconds(long ms) { return {ms / 1000, ms % 1000 * 1'000'000}; }

// Runs until SIGTERM, SIGINT, SIGHUP, perhaps the end of standard input, or until this server can
// be of no use any more.
int Serve(const DaemonOptions& options, VerbenaNode* node, const sigset_t& signals) {
  bool ready = false;
  const MonotonicClock clock;
  FreeHeap free_heap(&clock);
  for (;;) {
    if (!ready && node->health().ok()) {
      ready = true;
      spdlog::info("ready");
      if (!options.ready_file.empty()) {
        if (absl::Status wrote = WriteReadyFile(options.ready_file, *node); !wrote.ok()) {
          spdlog::error("--ready-file: {}", std::string(wrote.message()));
          return 1;
        }
      }
    }
    if (absl::Status fatal = node->fatal(); !fatal.ok()) {
      spdlog::error("{}", std::string(fatal.message()));
      return 1;
    }
    if (ready) free_heap.Return();
    const timespec wait = Milliseconds(ready ? 500 : 10);
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (signal > 0) {
      spdlog::info("{}: draining", strsignal(signal));
      return 0;
    }
    if (options.stop_at_stdin_end && StdinEnded()) {
      spdlog::info("standard input has ended: draining");
      return 0;
    }
  }
}

// All that matters has been done: the process ends with `code` even where gRPC 1.51 waits for ever,
// in grpc_shutdown(), for a thread that it could not start.
void EndWithin(std::chrono::seconds time, int code) {
  static volatile sig_atomic_t status;
  status = code;
  signal(SIGALRM, [](int) { _exit(status); });
  sigset_t late;
  sigemptyset(&late);
  sigaddset(&late, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &late, nullptr);
  alarm(static_cast<unsigned>(time.count()));
}

int Main(int argc, char** argv) {
  const ParsedOptions parsed = ParseCommandLine(argc, argv);
  if (parsed.exit_code.has_value()) {
    std::fputs(parsed.message.c_str(), *parsed.exit_code == 0 ? stdout : stderr);
    return *parsed.exit_code;
  }
  const DaemonOptions& options = parsed.options;
  ConfigureLogging(options.log_level);
  // Before any thread starts, so that all of them inherit it and this one alone takes signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // As nohup(1) leaves it, it stays without effect.
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&signals, SIGHUP);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  if (absl::Status removed = RemoveReadyFile(options.ready_file); !removed.ok()) {
    spdlog::error("--ready-file: {}", std::string(removed.message()));
    return 1;
  }
  absl::StatusOr<std::unique_ptr<VerbenaNode>> node = VerbenaNode::Start(options.node);
  if (!node.ok()) {
    spdlog::error("{}", std::string(node.status().message()));
    return 1;
  }
  const NodeOptions& n = options.node;
  spdlog::info("verbenad {} '{}' pid {}: control {}, metrics {}, {} shards, {}", kVersion, n.name,
               getpid(), (*node)->address(),
               (*node)->metrics_address().empty() ? "off" : (*node)->metrics_address(), n.shards,
               n.coordinator ? "coordinator" : absl::StrCat("joining ", n.join));
  const int code = Serve(options, node->get(), signals);
  // A second signal does not wait for the drain.
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) {
    signal(s, [](int) { _exit(1); });
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  const absl::Status stopped = (*node)->Stop();
  if (absl::Status removed = RemoveReadyFile(options.ready_file); !removed.ok()) {
    spdlog::warn("--ready-file: {}", std::string(removed.message()));
  }
  if (!stopped.ok()) {
    spdlog::error("{}", std::string(stopped.message()));
    node->reset();
    // Globals are not destroyed: calls that did not end may still use them.
    std::_Exit(1);
  }
  spdlog::info("stopped");
  EndWithin(GrpcServer::kLongestStop, code);
  return code;
}

}  // namespace
}  // namespace verbena::server

int main(int argc, char** argv) {
  verbena::PrepareProcess();
  return verbena::server::Main(argc, argv);
}
