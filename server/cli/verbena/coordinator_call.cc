#include "server/cli/verbena/coordinator_call.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

}  // namespace

std::string NewRequestId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = device();
    id.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return id;
}

std::string Said(const absl::Status& status, const std::string& address) {
  std::string said(status.message());
  // Of several coordinators it has the one that was called.
  for (const absl::string_view one : absl::StrSplit(address, ',')) {
    const std::string prefix = absl::StrCat(one, ": ");
    if (!absl::StartsWith(said, prefix)) continue;
    said.erase(0, prefix.size());
    break;
  }
  return Printable(said);
}

absl::Status Explain(const absl::Status& status, const Coordinator& coordinator) {
  const std::string& address = coordinator.address;
  const std::string who = absl::StrCat("the coordinator ", Printable(address));
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(
          absl::StrCat(who, " did not answer within ", absl::FormatDuration(coordinator.timeout),
                       ". Is its process stopped or its host overloaded? --timeout waits longer"));
    case absl::StatusCode::kUnavailable:
      // It has answered: it does not know yet whether its state is an older one.
      if (absl::StrContains(Said(status, address), "coordinator state: ")) break;
      return absl::UnavailableError(absl::StrCat(
          who, " cannot be reached: ", Said(status, address),
          ". Does 'verbenad --coordinator' run there? --cluster HOST:PORT or the environment "
          "variable VERBENA_CLUSTER names it"));
    case absl::StatusCode::kUnauthenticated:
      // Adds the fix.
      return absl::UnauthenticatedError(
          absl::StrCat(who, " was reached, but not spoken to: ", Said(status, address)));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(absl::StrCat(
          Printable(address),
          " is not the coordinator: that process does not serve a cluster's state. Name the "
          "verbenad that runs with --coordinator"));
    default:
      break;
  }
  // Not the peer's code: CANCELLED means an interrupt here.
  return absl::UnknownError(absl::StrCat(who, " answered with an error: ", Said(status, address)));
}

bool ChangeRetry::Again(absl::Status* status) {
  if (absl::IsCancelled(*status)) return false;
  if (!absl::IsUnavailable(*status)) {
    *status = Explain(*status, coordinator_);
    return false;
  }
  const std::string reason = Said(*status, coordinator_.address);
  if (left() <= kRetryPause) {
    *status = absl::UnavailableError(
        absl::StrCat("the coordinator ", Printable(coordinator_.address), " was not ready within ",
                     absl::FormatDuration(coordinator_.timeout), ": ", reason,
                     ". Does 'verbenad --coordinator' run there? --timeout waits longer"));
    return false;
  }
  // A reason may count milliseconds.
  std::string kind = reason;
  kind.erase(std::remove_if(kind.begin(), kind.end(), absl::ascii_isdigit), kind.end());
  if (kind != printed_) {
    std::fprintf(stderr, "verbena: the coordinator %s is not ready (%s); retrying for %s\n",
                 Printable(coordinator_.address).c_str(), reason.c_str(),
                 absl::FormatDuration(absl::Trunc(left(), absl::Milliseconds(100))).c_str());
    printed_ = std::move(kind);
  }
  const absl::Time resume = absl::Now() + kRetryPause;
  while (absl::Now() < resume) {
    pollfd interrupt = {coordinator_.interrupt_fd, POLLIN, 0};
    const int64_t ms = absl::ToInt64Milliseconds(resume - absl::Now()) + 1;
    if (poll(&interrupt, 1, static_cast<int>(ms)) > 0) {
      *status = absl::CancelledError("interrupted");
      return false;
    }
  }
  return true;
}

absl::Status RunUntil(const Coordinator& coordinator, const std::function<bool()>& done) {
  while (true) {
    coordinator.channel->RunOnce();
    if (done()) return absl::OkStatus();
    pollfd fds[2] = {{coordinator.channel->wake_fd(), POLLIN, 0},
                     {coordinator.interrupt_fd, POLLIN, 0}};
    poll(fds, 2, -1);
    if (fds[1].revents != 0) return absl::CancelledError("interrupted");
  }
}

}  // namespace verbena::cli
