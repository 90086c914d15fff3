// Pieces in which memory is exposed where each exposure registers it anew. ofi does so in the
// endpoint owner's thread. verbs without memory windows does so in any thread
// (Endpoint::StartExposure()).
//
// **Thread safety**: constants.
#ifndef VERBENA_RDMA_BASE_EXPOSURE_PIECES_H_
#define VERBENA_RDMA_BASE_EXPOSURE_PIECES_H_

#include <cstddef>

namespace verbena::rdma {

// Neighboring pieces overlap by the largest chunk of a table (kMaxChunkBytes), so that each chunk
// lies within one piece.
inline constexpr size_t kPieceOverlapBytes = size_t{8} << 20;
// Pinning 72 MiB takes about 15 ms, or about 100 ms if pages must be zeroed first. Other calls of
// the client may wait this long.
inline constexpr size_t kExposedPieceStride = size_t{64} << 20;
inline constexpr size_t kExposedPieceBytes = kExposedPieceStride + kPieceOverlapBytes;

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_BASE_EXPOSURE_PIECES_H_
