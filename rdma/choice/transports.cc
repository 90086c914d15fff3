#include "rdma/choice/transports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rdma/shm/shm_endpoint.h"

namespace verbena::rdma {
namespace {

// Best first: within a host no device is faster than memory, and ofi is for networks without RDMA.
constexpr std::string_view kPreference[] = {"shm", "verbs", "ofi"};

absl::StatusOr<MadeTransport> MakeShm() {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = NewShmEndpoint();
  if (!endpoint.ok()) return endpoint.status();
  return MadeTransport{*std::move(endpoint), ShmHostIdentity()};
}

// No host identity: whether two devices reach each other is known when they connect.
absl::StatusOr<MadeTransport> MakeVerbs(const VerbsOptions& options) {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = NewVerbsEndpoint(options);
  if (!endpoint.ok()) return endpoint.status();
  return MadeTransport{*std::move(endpoint), ""};
}

absl::StatusOr<MadeTransport> MakeOfi(const OfiOptions& options) {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = NewOfiEndpoint(options);
  if (!endpoint.ok()) return endpoint.status();
  return MadeTransport{*std::move(endpoint), ""};
}

}  // namespace

absl::Status CheckTransport(std::string_view transport) {
  if (transport == "auto") return absl::OkStatus();
  for (const std::string_view known : kPreference) {
    if (transport == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "transport is '", std::string(transport), "'; allowed: auto (the best that works), shm (",
      "within one host), verbs (RDMA: InfiniBand and RoCE), ofi (libfabric: TCP and others)"));
}

int TransportRank(std::string_view transport) {
  return static_cast<int>(std::find(std::begin(kPreference), std::end(kPreference), transport) -
                          kPreference);
}

absl::StatusOr<Transports> MakeTransports(const std::string& wanted,
                                          const std::vector<TransportMaker>& makers) {
  Transports result;
  for (const TransportMaker& maker : makers) {
    if (wanted != "auto" && wanted != maker.transport) {
      result.missing.push_back(
          {maker.transport, absl::StrCat("only transport ", wanted, " was asked for")});
      continue;
    }
    absl::StatusOr<MadeTransport> made = maker.make();
    if (made.ok()) {
      result.made.push_back(*std::move(made));
      continue;
    }
    const absl::Status& why = made.status();
    if (wanted != "auto") {
      return absl::Status(why.code(), absl::StrCat("transport ", wanted, ": ", why.message()));
    }
    // Not a matter of what this machine has: dropping the transport would hide the mistake.
    if (absl::IsInvalidArgument(why)) return why;
    result.missing.push_back({maker.transport, std::string(why.message())});
  }
  if (!result.made.empty()) return result;
  return absl::UnavailableError(absl::StrCat(
      "no transport works here: ",
      absl::StrJoin(result.missing, "; ", [](std::string* out, const MissingTransport& missing) {
        absl::StrAppend(out, missing.transport, ": ", missing.reason);
      })));
}

absl::StatusOr<Transports> MakeTransports(const TransportSettings& settings) {
  if (absl::Status s = CheckTransport(settings.transport); !s.ok()) return s;
  return MakeTransports(settings.transport, {{"shm", MakeShm},
                                             {"verbs", [&] { return MakeVerbs(settings.verbs); }},
                                             {"ofi", [&] { return MakeOfi(settings.ofi); }}});
}

std::string DescribeTransports(const Transports& transports) {
  std::string text =
      absl::StrJoin(transports.made, ", ", [](std::string* out, const MadeTransport& made) {
        const std::string device = made.endpoint->device();
        absl::StrAppend(out, std::string(made.endpoint->transport()),
                        device.empty() ? "" : absl::StrCat(" (", device, ")"));
      });
  for (const MissingTransport& missing : transports.missing) {
    absl::StrAppend(&text, "; not ", missing.transport, ": ", missing.reason);
  }
  return text;
}

}  // namespace verbena::rdma
