// Records of which followers may show the content.
#include <algorithm>

#include "shard/replica/copy_reads.h"
#include "shard/replica/log.h"

namespace verbena::shard {

uint64_t ReplicaLog::Settled(uint32_t partition) {
  Partition& p = partitions_[partition];
  if (!p.leads || p.sealed || p.copies.committed() < p.resumes) return 0;
  // Of these the content here is not that of the followers.
  const auto held = [&](const auto& table) { return table.second > p.committed; };
  if (std::any_of(p.held_reads.begin(), p.held_reads.end(), held)) return 0;
  const uint64_t gone = p.next - 1 - p.entries.size();
  p.settled = std::max(p.settled, std::min(gone, p.committed));
  while (p.settled < p.committed) {
    const Entry* const entry = Find(partition, p.settled + 1);
    if (entry != nullptr && !entry->applied) break;
    ++p.settled;
  }
  return p.settled;
}

bool ReplicaLog::AppliedIsCommitted(uint32_t partition) const {
  const Partition& p = partitions_[partition];
  if (!p.notes.empty()) return false;
  for (uint64_t s = std::max(p.committed + 1, p.next - p.entries.size()); s < p.next; ++s) {
    const Entry& entry = *Find(partition, s);
    if (entry.applied && ChangesChunks(entry.header.kind)) return false;
  }
  return true;
}

}  // namespace verbena::shard
