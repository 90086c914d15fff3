#include "server/coordinator/validation.h"

#include <xxhash.h>

#include <set>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/spec/table_spec.h"
#include "server/coordinator/configurations.h"
#include "server/coordinator/jobs.h"

namespace verbena::server {
namespace {

absl::Status Senseless(const std::string& what) {
  return absl::DataLossError(absl::StrCat("the coordinator's state makes no sense: ", what));
}

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon != std::string::npos && colon > 0 && address.size() <= 512 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address is '", address, "'; wanted: host:port, as peers reach the server"));
}

absl::Status CheckIncarnations(const CoordinatorState& state) {
  std::set<uint64_t> seen;
  const auto add = [&](uint64_t incarnation) {
    return incarnation > 0 && incarnation < state.next_incarnation &&
           seen.insert(incarnation).second;
  };
  std::set<std::string_view> names;
  for (const v1::Server& server : state.view.servers()) {
    if (!add(server.incarnation())) return Senseless("server incarnations");
    if (server.shards() == 0 || server.shards() > kMaxShards) return Senseless("shards");
    if (!names.insert(server.name()).second) return Senseless("two servers of one name");
  }
  names.clear();
  for (const v1::Job& job : state.view.jobs()) {
    if (!names.insert(job.name()).second) return Senseless("two jobs of one name");
    std::set<int32_t> ranks(job.departed_ranks().begin(), job.departed_ranks().end());
    for (const v1::Worker& member : job.members()) {
      if (!add(member.incarnation())) return Senseless("worker incarnations");
      if (member.rank() >= 0 && !ranks.insert(member.rank()).second) return Senseless("ranks");
    }
  }
  return absl::OkStatus();
}

// The view lists the last of them.
absl::Status CheckTerms(const CoordinatorState& state) {
  const Terms& listed = state.view.terms();
  if (state.terms.empty()) return absl::OkStatus();  // of an earlier version
  for (int i = 1; i < state.terms.size(); ++i) {
    if (state.terms[i].number() <= state.terms[i - 1].number()) return Senseless("terms");
  }
  const int before = state.terms.size() - listed.size();
  if (before < 0) return Senseless("terms are missing");
  for (int i = 0; i < listed.size(); ++i) {
    if (listed[i].id() != state.terms[before + i].id()) return Senseless("terms");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const CoordinatorOptions& options) {
  if (options.partitions == 0 || options.partitions > kMaxPartitions) {
    return absl::InvalidArgumentError(
        absl::StrCat("partitions is ", options.partitions, "; allowed: 1 to ", kMaxPartitions));
  }
  // Below, a busy machine's scheduling would end leases; above, a dead worker would go unnoticed.
  if (options.lease_ms < 100 || options.lease_ms > 3600000) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease_ms is ", options.lease_ms, "; allowed: 100 to 3600000"));
  }
  if (options.replicas > kMaxReplicas) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicas is ", options.replicas, "; allowed: 1 to ", kMaxReplicas));
  }
  if (options.replicas != 0 && options.min_replicas > options.replicas) {
    return absl::InvalidArgumentError(absl::StrCat("min_replicas is ", options.min_replicas,
                                                   "; allowed: 1 to replicas, which is ",
                                                   options.replicas));
  }
  if (options.terms_listed < 1 || options.terms_listed > kTermsListed) {
    return absl::InvalidArgumentError(
        absl::StrCat("terms_listed is ", options.terms_listed, "; allowed: 1 to ", kTermsListed));
  }
  return absl::OkStatus();
}

absl::Status CheckRequestId(const std::string& request_id) {
  if (request_id.size() == kRequestIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request_id has ", request_id.size(),
                                                 " bytes; wanted: ", kRequestIdBytes,
                                                 " random ones, the same when a call is repeated"));
}

absl::Status CheckName(const std::string& what, const std::string& name) {
  const auto wrong = [&](const std::string& is) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", is, "; allowed: 1 to ", kMaxNameBytes,
                                                   " bytes without control characters"));
  };
  if (name.empty()) return wrong("is empty");
  if (name.size() > kMaxNameBytes) return wrong(absl::StrCat("has ", name.size(), " bytes"));
  for (const char c : name) {
    if (!absl::ascii_iscntrl(static_cast<unsigned char>(c))) continue;
    return wrong(absl::StrCat("has a control character: '", absl::CHexEscape(name), "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckJoinServer(const v1::JoinServerRequest& request) {
  if (absl::Status status = CheckName("server name", request.name()); !status.ok()) return status;
  if (absl::Status status = CheckAddress(request.address()); !status.ok()) return status;
  if (request.shards() == 0 || request.shards() > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat("server '", request.name(), "' has ",
                                                   request.shards(), " shards; allowed: 1 to ",
                                                   kMaxShards));
  }
  if (!request.zone().empty()) {
    if (absl::Status status = CheckName("zone", request.zone()); !status.ok()) return status;
  }
  if (!request.version().empty()) return CheckName("server version", request.version());
  return absl::OkStatus();
}

absl::Status CheckState(const CoordinatorState& state) {
  const v1::ClusterView& view = state.view;
  if (view.cluster_id().empty()) return Senseless("no cluster id");
  if (view.partitions_size() == 0 || view.partitions_size() > static_cast<int>(kMaxPartitions)) {
    return Senseless("number of partitions");
  }
  if (absl::Status status = CheckTerms(state); !status.ok()) return status;
  if (absl::Status status = CheckIncarnations(state); !status.ok()) return status;
  for (int i = 0; i < view.partitions_size(); ++i) {
    if (view.partitions(i).id() != static_cast<uint32_t>(i)) return Senseless("partition ids");
  }
  if (absl::Status status = CheckConfigurations(view); !status.ok()) return status;
  std::set<std::pair<std::string_view, bool>> names;  // with whether it is being restored
  uint32_t last_id = 0;
  for (const v1::Table& table : view.tables()) {
    if (table.id() >= state.next_table || table.id() <= last_id) return Senseless("table ids");
    last_id = table.id();
    if (!names.emplace(table.spec().name(), table.restoring()).second) {
      return Senseless("two tables of one name");
    }
    if (!NormalizeTableSpec(table.spec()).ok()) {
      return Senseless(absl::StrCat("specification of table '", table.spec().name(), "'"));
    }
    for (const uint32_t lost : table.lost_partitions()) {
      if (lost >= static_cast<uint32_t>(view.partitions_size())) return Senseless("lost partition");
    }
  }
  return absl::OkStatus();
}

std::string Fingerprint(const std::string& method, const google::protobuf::Message& request) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    // Maps have no order of their own.
    coded.SetSerializationDeterministic(true);
    // Cannot fail: memory, and no required fields in proto3.
    [[maybe_unused]] const bool ok = request.SerializeToCodedStream(&coded);
  }
  return absl::StrCat(method, "#", absl::Hex(XXH3_64bits(bytes.data(), bytes.size())));
}

}  // namespace verbena::server
