#include "rdma/selection/transports.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rdma/shm/shm_endpoint.h"

namespace verbena::rdma {
namespace {

// Best first: within a host no device is faster than memory, and ofi is for networks without RDMA.
constexpr std::string_view kPreference[] = {"shm", "verbs", "ofi"};

using Made = std::vector<MadeTransport>;

// For one of several rails: giving up a lane too early only moves its traffic to another rail.
constexpr absl::Duration kRailSilence = absl::Seconds(3);

absl::StatusOr<Made> MakeShm() {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = NewShmEndpoint();
  if (!endpoint.ok()) return endpoint.status();
  Made made;
  made.push_back({*std::move(endpoint), ShmHostIdentity(), 0});
  return made;
}

// No host identity: whether two devices can reach each other is known when they connect.
template <typename Options>
absl::StatusOr<Made> MakeRails(
    const absl::StatusOr<std::vector<Options>>& rails,
    absl::StatusOr<std::unique_ptr<Endpoint>> (*make)(const Options& options)) {
  if (!rails.ok()) return rails.status();
  Made made;
  for (const Options& options : *rails) {
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = make(options);
    const auto rail = static_cast<uint32_t>(made.size());
    if (endpoint.ok()) {
      made.push_back({*std::move(endpoint), "", rail});
      continue;
    }
    if (rails->size() == 1) return endpoint.status();
    return absl::Status(endpoint.status().code(),
                        absl::StrCat("rail ", rail, ": ", endpoint.status().message()));
  }
  return made;
}

// The entries of a list; empty for an empty list.
absl::StatusOr<std::vector<std::string>> Entries(std::string_view what, const std::string& list) {
  std::vector<std::string> entries;
  if (list.empty()) return entries;
  entries = absl::StrSplit(list, ',');
  for (const std::string& entry : entries) {
    if (!entry.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(what), " is '", list,
        "', which has an empty entry; allowed: one for each rail, with a comma between"));
  }
  return entries;
}

// INVALID_ARGUMENT: two rails are equal.
absl::Status CheckDifferent(std::string_view what, std::vector<std::string> rails) {
  std::sort(rails.begin(), rails.end());
  const auto twice = std::adjacent_find(rails.begin(), rails.end());
  if (twice == rails.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(what), " names '", *twice,
                   "' twice; allowed: each rail once, because another "
                   "rail has to take over when it fails"));
}

}  // namespace

absl::StatusOr<std::vector<VerbsOptions>> VerbsRails(const VerbsOptions& options) {
  const auto devices = Entries("rdma device", options.device);
  if (!devices.ok()) return devices.status();
  const auto addresses = Entries("rdma address", options.address);
  if (!addresses.ok()) return addresses.status();
  if (!devices->empty() && !addresses->empty() && devices->size() != addresses->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rdma device is '", options.device, "', of ", devices->size(),
                     " entries, and rdma address '", options.address, "', of ", addresses->size(),
                     "; allowed: one entry for each rail in both, or one of the two left out"));
  }
  std::vector<VerbsOptions> rails;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::max<size_t>({devices->size(), addresses->size(), 1}); ++i) {
    VerbsOptions& rail = rails.emplace_back(options);
    rail.device = devices->empty() ? "" : (*devices)[i];
    rail.address = addresses->empty() ? "" : (*addresses)[i];
    names.push_back(devices->empty()     ? rail.address
                    : addresses->empty() ? rail.device
                                         : absl::StrCat(rail.device, " ", rail.address));
  }
  const bool named = !devices->empty();
  if (absl::Status s = CheckDifferent(named ? "rdma device" : "rdma address", names); !s.ok()) {
    return s;
  }
  return rails;
}

absl::StatusOr<std::vector<OfiOptions>> OfiRails(const OfiOptions& options) {
  auto addresses = Entries("ofi address", options.address);
  if (!addresses.ok()) return addresses.status();
  if (absl::Status s = CheckDifferent("ofi address", *addresses); !s.ok()) return s;
  if (addresses->empty()) addresses->emplace_back();
  std::vector<OfiOptions> rails;
  for (const std::string& address : *addresses) {
    OfiOptions& rail = rails.emplace_back(options);
    rail.address = address;
    if (addresses->size() > 1) rail.silence = std::min(rail.silence, kRailSilence);
  }
  return rails;
}

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
    absl::StatusOr<Made> made = maker.make();
    if (made.ok()) {
      std::move(made->begin(), made->end(), std::back_inserter(result.made));
      continue;
    }
    const absl::Status& why = made.status();
    if (wanted != "auto") {
      return absl::Status(why.code(), absl::StrCat("transport ", wanted, ": ", why.message()));
    }
    // An option error does not depend on the machine: dropping the transport would hide it.
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
  return MakeTransports(
      settings.transport,
      {{"shm", MakeShm},
       {"verbs", [&] { return MakeRails(VerbsRails(settings.verbs), NewVerbsEndpoint); }},
       {"ofi", [&] { return MakeRails(OfiRails(settings.ofi), NewOfiEndpoint); }}});
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
