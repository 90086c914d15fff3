#include "server/cli/verbena/cluster_reader.h"

#include <poll.h>
#include <sys/random.h>

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

constexpr char kGetView[] = "/verbena.v1.Cluster/GetView";
constexpr char kSetJobLimits[] = "/verbena.v1.Cluster/SetJobLimits";
constexpr char kGetStatistics[] = "/verbena.v1.Shard/GetStatistics";

constexpr size_t kRequestIdBytes = 16;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The channel's messages begin with the address, which is said before them here.
std::string Said(const absl::Status& status, const std::string& address) {
  std::string said(status.message());
  const std::string prefix = address + ": ";
  if (said.rfind(prefix, 0) == 0) said.erase(0, prefix.size());
  return Printable(said);
}

absl::Status Explain(const absl::Status& status, const std::string& address,
                     absl::Duration timeout) {
  const std::string who = absl::StrCat("the coordinator ", Printable(address));
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(
          absl::StrCat(who, " did not answer within ", absl::FormatDuration(timeout),
                       ". Is its process stopped or its host overloaded? --timeout waits longer"));
    case absl::StatusCode::kUnavailable:
      return absl::UnavailableError(absl::StrCat(
          who, " cannot be reached: ", Said(status, address),
          ". Does 'verbenad --coordinator' run there? --cluster HOST:PORT or the environment "
          "variable VERBENA_CLUSTER names it"));
    case absl::StatusCode::kUnauthenticated:
      // Says what to do.
      return absl::UnauthenticatedError(
          absl::StrCat(who, " was reached, but not spoken to: ", Said(status, address)));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(absl::StrCat(
          Printable(address),
          " is not the coordinator: what listens there does not serve a cluster's state. Name the "
          "verbenad that runs with --coordinator"));
    default:
      // Not the peer's code: CANCELLED means an interrupt here.
      return absl::UnknownError(
          absl::StrCat(who, " answered with an error: ", Said(status, address)));
  }
}

// What a server's missing statistics are reported with.
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

ClusterReader::ClusterReader(ControlChannel* channel, std::string coordinator,
                             absl::Duration timeout, int interrupt_fd)
    : channel_(channel),
      coordinator_(std::move(coordinator)),
      timeout_(timeout),
      interrupt_fd_(interrupt_fd) {}

absl::Status ClusterReader::RunUntil(const std::function<bool()>& done) {
  while (true) {
    channel_->RunOnce();
    if (done()) return absl::OkStatus();
    pollfd fds[2] = {{channel_->wake_fd(), POLLIN, 0}, {interrupt_fd_, POLLIN, 0}};
    poll(fds, 2, -1);
    if (fds[1].revents != 0) return absl::CancelledError("interrupted");
  }
}

absl::Status ClusterReader::Sleep(absl::Duration time) {
  const double end = SteadySeconds() + absl::ToDoubleSeconds(time);
  while (true) {
    const double left = end - SteadySeconds();
    if (left <= 0) return absl::OkStatus();
    pollfd interrupt = {interrupt_fd_, POLLIN, 0};
    // Rounded up: rounded down, the last millisecond would be spent spinning.
    poll(&interrupt, 1, static_cast<int>(std::min(left, 3600.0) * 1000) + 1);
    if (interrupt.revents != 0) return absl::CancelledError("interrupted");
  }
}

absl::StatusOr<ClusterState> ClusterReader::Read(bool with_servers, const ClusterState* earlier) {
  ClusterState state;
  state.coordinator = coordinator_;
  absl::StatusOr<v1::ClusterView> view = ReadView();
  if (view.ok()) {
    state.view = std::move(*view);
  } else if (earlier == nullptr || absl::IsCancelled(view.status())) {
    return view.status();
  } else {
    state.view = earlier->view;
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

absl::StatusOr<v1::ClusterView> ClusterReader::ReadView() {
  // Shared with the call: it may end after an interrupt has ended the wait.
  struct Answer {
    bool done = false;
    absl::StatusOr<v1::GetViewResponse> response = absl::UnknownError("no answer");
  };
  auto answer = std::make_shared<Answer>();
  Call<v1::GetViewResponse>(*channel_, coordinator_, kGetView, v1::GetViewRequest(), timeout_,
                            [answer](absl::StatusOr<v1::GetViewResponse> response) {
                              answer->response = std::move(response);
                              answer->done = true;
                            });
  if (absl::Status status = RunUntil([&] { return answer->done; }); !status.ok()) return status;
  if (!answer->response.ok()) return Explain(answer->response.status(), coordinator_, timeout_);
  if (!answer->response->has_view()) {
    return absl::InternalError(
        absl::StrCat("coordinator ", Printable(coordinator_), " answered without a cluster view"));
  }
  return std::move(*answer->response->mutable_view());
}

absl::Status ClusterReader::SetLimits(const std::string& job, const v1::JobLimits& limits) {
  v1::SetJobLimitsRequest request;
  char id[kRequestIdBytes];
  if (getrandom(id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) {
    return absl::UnavailableError("the system's random numbers cannot be read");
  }
  request.set_request_id(id, sizeof id);
  request.set_job(job);
  *request.mutable_limits() = limits;
  auto answer = std::make_shared<std::optional<absl::Status>>();
  Call<v1::SetJobLimitsResponse>(
      *channel_, coordinator_, kSetJobLimits, request, timeout_,
      [answer](const absl::StatusOr<v1::SetJobLimitsResponse>& got) { *answer = got.status(); });
  absl::Status status = RunUntil([&] { return answer->has_value(); });
  if (!status.ok()) return status;
  return (*answer)->ok() ? absl::OkStatus() : Explain(**answer, coordinator_, timeout_);
}

absl::StatusOr<std::vector<ServerState>> ClusterReader::ReadServers(const v1::ClusterView& view) {
  struct Answers {
    std::vector<ServerState> servers;
    size_t missing = 0;
  };
  auto answers = std::make_shared<Answers>();
  answers->servers.resize(view.servers_size());
  answers->missing = answers->servers.size();
  for (size_t i = 0; i < answers->servers.size(); ++i) {
    const v1::Server& server = view.servers(static_cast<int>(i));
    answers->servers[i].server = server;
    Call<v1::GetStatisticsResponse>(
        *channel_, server.address(), kGetStatistics, v1::GetStatisticsRequest(), timeout_,
        [answers, i, timeout = timeout_](absl::StatusOr<v1::GetStatisticsResponse> got) {
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
  if (absl::Status status = RunUntil([&] { return answers->missing == 0; }); !status.ok()) {
    return status;
  }
  return std::move(answers->servers);
}

}  // namespace verbena::cli
