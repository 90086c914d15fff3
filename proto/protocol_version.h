// Versions of the protocol between Verbena's programs.
//
// One number covers lane records and replies, replication records, the transports' connect messages
// and the calls of the control plane. A change that a program of the version before would not
// understand has a new number (CONTRIBUTING.md, "Change a format"). Each program names the range
// that it speaks when it joins a cluster and when it opens a lane. A lane uses the newest version
// that both sides speak. The cluster has a version in force (ClusterView.protocol): the newest that
// the coordinator and all servers speak. Features of later versions are not used.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_PROTOCOL_VERSION_H_
#define VERBENA_PROTO_PROTOCOL_VERSION_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

// 10: programs that name no range when they join. 11: ranges are named, records have the version of
// their lane, and followers answer pulls.
inline constexpr uint32_t kProtocolVersion = 11;
inline constexpr uint32_t kOldestProtocolVersion = 10;
inline constexpr uint32_t kFollowersProtocol = 11;
// Of programs that name none.
inline constexpr uint32_t kUnnamedProtocolVersion = 10;

struct Protocols {
  uint32_t oldest = kUnnamedProtocolVersion;
  uint32_t newest = kUnnamedProtocolVersion;

  constexpr bool Includes(uint32_t version) const { return oldest <= version && version <= newest; }
  friend bool operator==(const Protocols&, const Protocols&) = default;
};

// The range of this program. In a source of its own: tests link programs with another one.
Protocols SpokenProtocols();

// The newest version that both speak; 0: there is none.
constexpr uint32_t CommonProtocol(const Protocols& a, const Protocols& b) {
  const uint32_t newest = std::min(a.newest, b.newest);
  return newest >= std::max(a.oldest, b.oldest) ? newest : 0;
}

inline Protocols ProtocolsOf(const v1::ProtocolRange& range) {
  if (range.newest() == 0) return {};
  return {range.oldest(), range.newest()};
}
inline void SetProtocols(const Protocols& spoken, v1::ProtocolRange* range) {
  range->set_oldest(spoken.oldest);
  range->set_newest(spoken.newest);
}

inline uint32_t ProtocolInForce(const v1::ClusterView& view) {
  return view.protocol() == 0 ? kUnnamedProtocolVersion : view.protocol();
}

// "10 to 11", "10".
inline std::string DescribeProtocols(const Protocols& spoken) {
  if (spoken.oldest == spoken.newest) return absl::StrCat(spoken.newest);
  return absl::StrCat(spoken.oldest, " to ", spoken.newest);
}

}  // namespace verbena

#endif  // VERBENA_PROTO_PROTOCOL_VERSION_H_
