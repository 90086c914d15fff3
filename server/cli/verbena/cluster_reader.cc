#include "server/cli/verbena/cluster_reader.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

constexpr char kGetStatistics[] = "/verbena.v1.Shard/GetStatistics";

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The error that reports a server's missing statistics.
absl::Status ExplainServer(const absl::Status& status, const std::string& address,
                           absl::Duration timeout) {
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("no statistics within ", absl::FormatDuration(timeout),
                     ". Is its process stopped or its host overloaded?"));
  }
  // Not the peer's code: FAILED_PRECONDITION means another process here.
  return absl::UnavailableError(Said(status, address));
}

void CheckIncarnation(ServerState* state) {
  if (!state->statistics.ok()) return;
  const uint64_t answered = state->statistics->incarnation();
  if (answered == state->server.incarnation()) return;
  state->statistics = absl::FailedPreconditionError(
      answered == 0 ? "another process answers there, which has not joined the cluster"
                    : absl::StrCat("incarnation ", answered, " answers there, not ",
                                   state->server.incarnation()));
}

}  // namespace

ClusterReader::ClusterReader(Coordinator coordinator) : coordinator_(std::move(coordinator)) {}

Coordinator ClusterReader::Bounded() const {
  Coordinator bounded = coordinator_;
  bounded.timeout = std::clamp(end_ - absl::Now(), absl::Milliseconds(1), coordinator_.timeout);
  return bounded;
}

absl::Status ClusterReader::Sleep(absl::Duration time) {
  const double end = SteadySeconds() + absl::ToDoubleSeconds(time);
  while (true) {
    const double left = end - SteadySeconds();
    if (left <= 0) return absl::OkStatus();
    pollfd interrupt = {coordinator_.interrupt_fd, POLLIN, 0};
    // Rounded up: rounded down, the last millisecond would be spent spinning.
    poll(&interrupt, 1, static_cast<int>(std::min(left, 3600.0) * 1000) + 1);
    if (interrupt.revents != 0) return absl::CancelledError("interrupted");
  }
}

absl::StatusOr<ClusterState> ClusterReader::Read(bool with_servers, const ClusterState* earlier) {
  ClusterState state;
  state.coordinator = coordinator_.address;
  absl::StatusOr<v1::GetViewResponse> view = ReadView();
  if (view.ok()) {
    state.view = std::move(*view->mutable_view());
    const auto& failing = view->failing_checkpoints();
    state.failing_checkpoints.assign(failing.begin(), failing.end());
    state.full_servers.assign(view->full_servers().begin(), view->full_servers().end());
    state.coordinator_protocol = view->coordinator_protocol();
    state.coordinator_version = view->coordinator_version();
  } else if (earlier == nullptr || absl::IsCancelled(view.status())) {
    return view.status();
  } else {
    state.view = earlier->view;
    state.failing_checkpoints = earlier->failing_checkpoints;
    state.full_servers = earlier->full_servers;
    state.coordinator_protocol = earlier->coordinator_protocol;
    state.coordinator_version = earlier->coordinator_version;
    state.coordinator_status = view.status();
  }
  if (with_servers) {
    absl::StatusOr<std::vector<ServerState>> servers = ReadServers(state.view);
    if (!servers.ok()) return servers.status();
    state.servers = std::move(*servers);
  }
  state.time = absl::Now();
  state.read_at = SteadySeconds();
  return state;
}

absl::StatusOr<v1::GetViewResponse> ClusterReader::ReadView() {
  absl::StatusOr<v1::GetViewResponse> response =
      CallAndWait<v1::GetViewResponse>(Bounded(), "GetView", v1::GetViewRequest());
  if (!response.ok()) return response.status();
  if (!response->has_view()) {
    return absl::InternalError(absl::StrCat("coordinator ", Printable(coordinator_.address),
                                            " answered without a cluster view"));
  }
  return response;
}

absl::StatusOr<std::vector<ServerState>> ClusterReader::ReadServers(const v1::ClusterView& view) {
  struct Answers {
    std::vector<ServerState> servers;
    size_t missing = 0;
  };
  const absl::Duration timeout = Bounded().timeout;
  auto answers = std::make_shared<Answers>();
  answers->servers.resize(view.servers_size());
  answers->missing = answers->servers.size();
  v1::GetStatisticsRequest request;
  request.set_partitions(partitions_);
  for (size_t i = 0; i < answers->servers.size(); ++i) {
    const v1::Server& server = view.servers(static_cast<int>(i));
    answers->servers[i].server = server;
    Call<v1::GetStatisticsResponse>(
        *coordinator_.channel, server.address(), kGetStatistics, request, timeout,
        [answers, i, timeout](absl::StatusOr<v1::GetStatisticsResponse> got) {
          ServerState& state = answers->servers[i];
          state.statistics = std::move(got);
          if (!state.statistics.ok()) {
            state.statistics =
                ExplainServer(state.statistics.status(), state.server.address(), timeout);
          }
          state.read_at = SteadySeconds();
          CheckIncarnation(&state);
          --answers->missing;
        });
  }
  if (absl::Status status = RunUntil(coordinator_, [&] { return answers->missing == 0; });
      !status.ok()) {
    return status;
  }
  return std::move(answers->servers);
}

}  // namespace verbena::cli
