#include "server/coordinator/job_sums.h"

#include <algorithm>

#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"

namespace verbena::server {

uint64_t ContributionsOf(const v1::TableSpec& spec, uint64_t partitions) {
  if (spec.consistency() != v1::CONSISTENCY_SYNC) return 0;
  if (spec.dim() > 0) return partitions;
  const uint64_t chunks = LayoutOf(spec).chunks();
  return chunks + std::min(chunks, partitions);
}

// Unsigned sums wrap, so that a table's part is subtracted exactly.
void JobSums::Count(const v1::Table& table, uint32_t partitions, const ChunkMemory& chunk_memory,
                    int64_t sign) {
  const v1::TableSpec& spec = table.spec();
  if (table.replaces() == 0) tables += sign;
  if (spec.consistency() == v1::CONSISTENCY_SYNC) sync_tables += sign;
  contributions += static_cast<uint64_t>(sign) * ContributionsOf(spec, partitions);
  if (const double norm = spec.optimizer().clip_global_norm(); norm != 0) {
    if ((norms[norm] += sign) == 0) norms.erase(norm);
  }
  if (spec.dim() > 0) return;  // rows are made when they are pushed
  const DenseLayout layout = LayoutOf(spec);
  const uint64_t bytes = chunk_memory ? chunk_memory(spec)
                                      : std::min<uint64_t>(layout.elements, layout.chunk_elements) *
                                            layout.parameter_bytes;
  dense_bytes.resize(partitions);
  for (uint32_t p = 0; p < partitions; ++p) {
    const uint64_t chunks = ChunksInPartition(table.id(), layout.chunks(), p, partitions);
    dense_bytes[p] += static_cast<uint64_t>(sign) * chunks * bytes;
  }
}

void JobSums::Add(const v1::Table& table, uint32_t partitions, const ChunkMemory& chunk_memory) {
  Count(table, partitions, chunk_memory, 1);
}

void JobSums::Remove(const v1::Table& table, uint32_t partitions, const ChunkMemory& chunk_memory) {
  Count(table, partitions, chunk_memory, -1);
}

}  // namespace verbena::server
