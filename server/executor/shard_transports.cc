#include "server/executor/shard_transports.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace verbena::server {
namespace {

constexpr size_t kNone = SIZE_MAX;
// A worker's claims appear in the log and metrics: these limit their number and length.
constexpr int kMostClaims = 8;
constexpr size_t kLongestClaim = 200;

std::string Printable(const std::string& text) {
  std::string out = text.substr(0, kLongestClaim);
  for (char& c : out) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return out;
}

// The claims of the two sides about one transport.
struct Candidate {
  std::string transport;
  size_t link = kNone;  // ours
  const v1::TransportOffer* offer = nullptr;
  std::string not_here, not_there;  // why it is missing
};

Candidate* Find(std::vector<Candidate>* candidates, const std::string& transport) {
  for (Candidate& candidate : *candidates) {
    if (candidate.transport == transport) return &candidate;
  }
  candidates->emplace_back().transport = transport;
  return &candidates->back();
}

// The reason why a candidate is not usable.
std::string Why(const Candidate& c, bool other_host) {
  if (other_host) return absl::StrCat(c.transport, ": other host");
  const std::string there = c.not_there.empty() ? "not offered" : c.not_there;
  const std::string here = c.not_here.empty() ? "not in this build" : c.not_here;
  if (c.link != kNone) return absl::StrCat(c.transport, ": not on the worker: ", there);
  if (c.offer != nullptr) return absl::StrCat(c.transport, ": not on the server: ", here);
  if (here == there) return absl::StrCat(c.transport, ": on neither side: ", here);
  return absl::StrCat(c.transport, ": on neither side: server: ", here, ", worker: ", there);
}

}  // namespace

absl::Status ShardTransports::Listen(std::vector<rdma::MadeTransport> transports) {
  absl::Status failed;
  for (rdma::MadeTransport& transport : transports) {
    TransportLink link;
    const std::string name(transport.endpoint->transport());
    // Nor with the rails of it that can listen: if several rails are named, all are needed.
    const auto same = [&](const auto& missing) { return missing.transport == name; };
    if (std::any_of(missing_.begin(), missing_.end(), same)) continue;
    absl::StatusOr<std::string> address = transport.endpoint->Listen();
    if (!address.ok()) {
      const std::string why = absl::StrCat("cannot listen: ", address.status().message());
      failed = absl::Status(address.status().code(), absl::StrCat("shard ", options_.shard,
                                                                  ": transport ", name, ": ", why));
      if (!options_.optional_transports) return failed;
      if (options_.log) options_.log(std::string(failed.message()));
      missing_.push_back({name, why});
      std::erase_if(links_,
                    [&](const TransportLink& made) { return made.endpoint->transport() == name; });
      continue;
    }
    link.address = *std::move(address);
    link.endpoint = std::move(transport.endpoint);
    link.host = std::move(transport.host);
    link.rail = transport.rail;
    links_.push_back(std::move(link));
  }
  return links_.empty() ? failed : absl::OkStatus();
}

absl::StatusOr<size_t> ShardTransports::Choose(const v1::OpenLaneRequest& request,
                                               std::string* reason) const {
  std::vector<Candidate> candidates;
  std::vector<std::string> ours, theirs;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].rail > 0) continue;  // the same transport once more
    ours.emplace_back(links_[i].endpoint->transport());
    Find(&candidates, ours.back())->link = i;
  }
  for (const rdma::MissingTransport& ours_missing : missing_) {
    Find(&candidates, ours_missing.transport)->not_here = ours_missing.reason;
  }
  for (const v1::TransportOffer& offer : request.offers()) {
    if (theirs.size() == kMostClaims) break;
    theirs.push_back(Printable(offer.transport()));
    Find(&candidates, theirs.back())->offer = &offer;
  }
  for (int i = 0; i < std::min(request.missing_size(), kMostClaims); ++i) {
    const v1::MissingTransport& said_missing = request.missing(i);
    Find(&candidates, Printable(said_missing.transport()))->not_there =
        Printable(said_missing.reason());
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return rdma::TransportRank(a.transport) < rdma::TransportRank(b.transport);
                   });
  std::vector<std::string> said;
  for (const Candidate& c : candidates) {
    const bool both = c.link != kNone && c.offer != nullptr;
    if (both && c.offer->host() == links_[c.link].host) {
      said.push_back(
          absl::StrCat(c.transport, c.transport == "shm" ? ": same host" : ": both have it"));
      *reason = absl::StrJoin(said, "; ");
      return c.link;
    }
    said.push_back(Why(c, both));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "no common transport: this server has [", absl::StrJoin(ours, ", "), "], the worker offers [",
      absl::StrJoin(theirs, ", "), "]; ", absl::StrJoin(said, "; ")));
}

uint32_t ShardTransports::RailsOf(size_t link) const {
  const std::string_view transport = links_[link].endpoint->transport();
  return static_cast<uint32_t>(std::count_if(
      links_.begin(), links_.end(),
      [&](const TransportLink& other) { return other.endpoint->transport() == transport; }));
}

absl::StatusOr<size_t> ShardTransports::ChooseRail(size_t link, uint32_t rail) const {
  const std::string_view transport = links_[link].endpoint->transport();
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].rail == rail && links_[i].endpoint->transport() == transport) return i;
  }
  return absl::InvalidArgumentError(absl::StrCat("rail ", rail, " of transport ",
                                                 std::string(transport),
                                                 " asked for; allowed: 0 to ", RailsOf(link) - 1));
}

}  // namespace verbena::server
