#include "server/cli/verbena/rolling_restart.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/number_values.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"

namespace verbena::cli {
namespace {

constexpr absl::Duration kBetweenReads = absl::Milliseconds(250);

const ServerState* Find(const std::string& name, const ClusterState& state) {
  const auto it = std::find_if(state.servers.begin(), state.servers.end(),
                               [&](const ServerState& s) { return s.server.name() == name; });
  return it == state.servers.end() ? nullptr : &*it;
}

void Say(const std::string& line) { std::fprintf(stderr, "verbena: %s\n", line.c_str()); }

// One after the other: a server, and what it waits for.
class RollingRestart {
 public:
  RollingRestart(const RollingRestartOptions& options, const Coordinator& coordinator,
                 ClusterReader* reader)
      : options_(options), coordinator_(coordinator), reader_(*reader) {}

  absl::StatusOr<size_t> Run() {
    absl::StatusOr<ClusterState> state = reader_.Read(/*with_servers=*/true);
    if (!state.ok()) return state.status();
    if (absl::Status status = Choose(*state); !status.ok()) return status;
    for (size_t i = 0; i < names_.size(); ++i) {
      const absl::Status status = Restart(names_[i], i);
      if (status.ok()) continue;
      const std::vector<std::string> left(names_.begin() + static_cast<int64_t>(i), names_.end());
      return absl::Status(status.code(),
                          absl::StrCat(std::string(status.message()),
                                       "; not restarted: ", absl::StrJoin(left, ", ")));
    }
    if (absl::Status status = AwaitSettled(); !status.ok()) return status;
    Say(absl::StrCat("restarted ", names_.size(), names_.size() == 1 ? " server" : " servers",
                     "; the cluster has all of its replicas"));
    return names_.size();
  }

 private:
  absl::Status Choose(const ClusterState& state) {
    for (const std::string& name : options_.servers) {
      if (Find(name, state) == nullptr) {
        return absl::NotFoundError(
            absl::StrCat("there is no server '", Printable(name), "' (verbena status lists them)"));
      }
      names_.push_back(name);
    }
    if (names_.empty()) {
      for (const ServerState& server : state.servers) names_.push_back(server.server.name());
    }
    if (names_.empty()) return absl::FailedPreconditionError("the cluster has no servers");
    if (ReplicasOf(state.view) < 2 && !options_.drain) {
      return absl::FailedPreconditionError(
          "the cluster keeps one replica (verbenad --replicas), so a server that stops takes its "
          "partitions with it; with --drain they are moved to other servers before");
    }
    return absl::OkStatus();
  }

  absl::Status Restart(const std::string& name, size_t done) {
    if (absl::Status status = AwaitSettled(); !status.ok()) return status;
    absl::StatusOr<ClusterState> state = reader_.Read(/*with_servers=*/true);
    if (!state.ok()) return state.status();
    const ServerState* const server = Find(name, *state);
    if (server == nullptr) {
      return absl::AbortedError(
          absl::StrCat("server '", Printable(name), "' was removed from the cluster"));
    }
    const uint64_t before = server->server.incarnation();
    if (options_.drain) {
      if (absl::Status status = Drain(name); !status.ok()) return status;
    }
    Say(absl::StrCat("restarting '", Printable(name), "' (", done + 1, " of ", names_.size(), ")"));
    absl::Status status = RunCommand(name, server->server.address());
    if (!status.ok()) {
      // It has nothing any more, but it is there.
      if (options_.drain) (void)SetDraining(name, false);
      return status;
    }
    return Await(
        absl::StrCat("server '", Printable(name), "' to be back"), [&](const ClusterState& now) {
          const ServerState* const back = Find(name, now);
          return back != nullptr && back->server.incarnation() != before && back->statistics.ok();
        });
  }

  absl::Status AwaitSettled() {
    return Await("all replicas", [](const ClusterState& now) { return Settled(now); });
  }

  // The coordinator may be away for a while, too.
  template <typename Condition>
  absl::Status Await(const std::string& awaited, Condition condition) {
    const absl::Time end = absl::Now() + absl::Seconds(options_.wait_seconds);
    std::string printed;
    while (true) {
      const absl::StatusOr<ClusterState> state = reader_.Read(/*with_servers=*/true);
      const bool away =
          absl::IsUnavailable(state.status()) || absl::IsDeadlineExceeded(state.status());
      if (!state.ok() && !away) return state.status();
      if (state.ok() && condition(*state)) return absl::OkStatus();
      const std::string obstacle =
          state.ok() ? Obstacle(*state) : std::string(state.status().message());
      if (absl::Now() > end) {
        const std::string waited =
            absl::StrCat("waited ", options_.wait_seconds, " s (--wait) for ", awaited,
                         obstacle.empty() ? "" : ": ", obstacle);
        // The exit status shows whether the coordinator answers.
        return away ? absl::DeadlineExceededError(waited) : absl::FailedPreconditionError(waited);
      }
      const std::string line =
          absl::StrCat("waiting for ", awaited, obstacle.empty() ? "" : ": ", obstacle);
      if (line != printed) Say(line);
      printed = line;
      if (absl::Status slept = reader_.Sleep(kBetweenReads); !slept.ok()) return slept;
    }
  }

  absl::Status SetDraining(const std::string& name, bool draining) {
    v1::DrainServerRequest request;
    request.set_request_id(NewRequestId());
    request.set_name(name);
    request.set_cancel(!draining);
    return ChangeAndWait<v1::DrainServerResponse>(coordinator_, "DrainServer", request).status();
  }

  absl::Status Drain(const std::string& name) {
    if (absl::Status status = SetDraining(name, true); !status.ok()) return status;
    const absl::Status status =
        Await(absl::StrCat("'", Printable(name), "' to be drained"), [&](const ClusterState& now) {
          const ServerState* const server = Find(name, now);
          if (server == nullptr) return true;
          const PartitionCount has = PlacementOf(now).OfServer(server->server.incarnation());
          return has.partitions + has.followers + has.learners == 0;
        });
    if (!status.ok()) (void)SetDraining(name, false);
    return status;
  }

  absl::Status RunCommand(const std::string& name, const std::string& address) {
    const std::string named = "VERBENA_SERVER_NAME=" + name;
    const std::string addressed = "VERBENA_SERVER_ADDRESS=" + address;
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(const_cast<char*>(named.c_str()));
    environment.push_back(const_cast<char*>(addressed.c_str()));
    environment.push_back(nullptr);
    const char* const arguments[] = {"sh", "-c", options_.command.c_str(), nullptr};
    // This program takes its signals from a descriptor.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t child = 0;
    const int error = posix_spawn(&child, "/bin/sh", nullptr, &attributes,
                                  const_cast<char* const*>(arguments), environment.data());
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("--command: /bin/sh: ", std::strerror(error)));
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (absl::Status slept = reader_.Sleep(absl::Milliseconds(50)); !slept.ok()) {
        kill(child, SIGTERM);
        waitpid(child, &status, 0);
        return slept;
      }
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("--command ended with ",
                     WIFEXITED(status) ? absl::StrCat("exit status ", WEXITSTATUS(status))
                                       : absl::StrCat("signal ", WTERMSIG(status)),
                     " for server '", Printable(name), "'"));
  }

  const RollingRestartOptions& options_;
  const Coordinator& coordinator_;
  ClusterReader& reader_;
  std::vector<std::string> names_;
};

}  // namespace

void AddRollingRestart(CLI::App* command, RollingRestartOptions* restart) {
  command
      ->add_option("--command", restart->command,
                   "Command for /bin/sh that restarts the server $VERBENA_SERVER_NAME, whose "
                   "control plane is at $VERBENA_SERVER_ADDRESS")
      ->type_name("TEXT")
      ->required();
  command
      ->add_option("--server", restart->servers,
                   "Name of a server; may be repeated (default: all servers)")
      ->type_name("SERVER");
  command->add_flag("--drain", restart->drain, "Move everything off a server before its restart");
  command
      ->add_option("--wait", restart->wait_seconds,
                   "Longest wait for a server that was restarted, and then for all replicas, in "
                   "seconds, 1 to 86400")
      ->type_name("SECONDS")
      ->check(NumberIn(1, 86400, "seconds"))
      ->capture_default_str();
}

absl::StatusOr<size_t> RunRollingRestart(const RollingRestartOptions& options,
                                         const Coordinator& coordinator, ClusterReader* reader) {
  return RollingRestart(options, coordinator, reader).Run();
}

}  // namespace verbena::cli
