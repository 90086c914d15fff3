#include "server/replication/configuration_calls.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace verbena::server {
namespace {

// Changes of one kind that concern the same server, and the partitions they are of.
std::string Describe(v1::ConfigurationChange::Kind kind, uint64_t server,
                     const std::vector<uint32_t>& partitions, GiveUp why) {
  constexpr size_t kNamed = 8;
  std::string them = absl::StrCat("partition ", partitions[0]);
  if (partitions.size() > 1) {
    const auto end =
        partitions.begin() + static_cast<std::ptrdiff_t>(std::min(partitions.size(), kNamed));
    them = absl::StrCat(partitions.size(), " partitions (",
                        absl::StrJoin(partitions.begin(), end, ", "),
                        partitions.size() > kNamed ? ", ...)" : ")");
  }
  switch (kind) {
    case v1::ConfigurationChange::DROP_REPLICA:
      return absl::StrCat("server ", server, " has no replica of ", them, " any more: it ",
                          why == GiveUp::kRefuses    ? "took none of its records for too long"
                          : why == GiveUp::kNoMemory ? "has no memory for it (--memory-limit)"
                          : why == GiveUp::kDiffers  ? "differs from its primary"
                          : why == GiveUp::kSurplus  ? "is not needed any more"
                                                     : "did not answer for a lease");
    case v1::ConfigurationChange::ADMIT:
      return absl::StrCat("server ", server, " has all of ", them, " and is a follower");
    case v1::ConfigurationChange::PROMOTE:
      return absl::StrCat("this shard is the primary of ", them,
                          ": the one before was silent for a lease");
    case v1::ConfigurationChange::HAND_OVER:
      return absl::StrCat("this shard has stopped to serve ", them,
                          ", for a planned move to server ", server);
    default:
      return them;
  }
}

}  // namespace

std::string ConfigurationCalls::NewRequestId() {
  std::string id;
  for (int word = 0; word < 2; ++word) {
    const uint64_t bits = random_();
    id.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return id;
}

void ConfigurationCalls::Ask(uint64_t self, std::vector<WantedChange> wanted,
                             absl::Duration timeout, int64_t now_ns, Answered answered) {
  v1::ReconfigureRequest request;
  request.set_request_id(NewRequestId());
  request.set_incarnation(self);
  *request.mutable_ticket() = ticket_;
  for (const WantedChange& w : wanted) *request.add_changes() = w.change;
  asking_ = true;
  Call<v1::ReconfigureResponse>(
      *control_, coordinator_, "/verbena.v1.Cluster/Reconfigure", request, timeout,
      [this, now_ns, wanted = std::move(wanted), answered = std::move(answered),
       alive = alive_](absl::StatusOr<v1::ReconfigureResponse> response) {
        if (!*alive) return;
        asking_ = false;
        if (!response.ok()) return;  // the next is due soon
        answered_ns_ = now_ns;
        answered(wanted, Take(*response));
        CountMade(wanted, *response);
      });
}

// Once again at once after a late answer, but not for ever where the coordinator is that slow.
ConfigurationCalls::Answer ConfigurationCalls::Take(const v1::ReconfigureResponse& response) {
  ticket_ = response.ticket();
  const bool was_late = std::exchange(late_, response.late());
  return {.late = late_, .again = late_ && !was_late};
}

void ConfigurationCalls::CountMade(const std::vector<WantedChange>& wanted,
                                   const v1::ReconfigureResponse& response) {
  using Made = std::tuple<v1::ConfigurationChange::Kind, uint64_t, GiveUp>;
  std::map<Made, std::vector<uint32_t>> made;
  for (size_t i = 0; i < wanted.size() && static_cast<int>(i) < response.made_size(); ++i) {
    if (!response.made(static_cast<int>(i))) continue;
    const v1::ConfigurationChange& change = wanted[i].change;
    switch (change.kind()) {
      case v1::ConfigurationChange::DROP_REPLICA:
        ++counters_.dropped_copies;
        break;
      case v1::ConfigurationChange::ADMIT:
        ++counters_.admitted;
        break;
      case v1::ConfigurationChange::PROMOTE:
        ++counters_.promotions;
        break;
      default:
        break;
    }
    made[{change.kind(), change.server(), wanted[i].why}].push_back(change.partition());
  }
  if (!log_) return;
  for (const auto& [of, partitions] : made) {
    const auto& [kind, server, why] = of;
    log_(Describe(kind, server, partitions, why));
  }
}

}  // namespace verbena::server
