// The pieces in which memory is exposed where each exposure registers it anew: by ofi, in the
// thread of the endpoint's owner, and by verbs without memory windows, where any thread may do it
// (Endpoint::StartExposure()).
//
// **Thread safety**: constants.
#ifndef VERBENA_RDMA_BASE_EXPOSURE_PIECES_H_
#define VERBENA_RDMA_BASE_EXPOSURE_PIECES_H_

#include <cstddef>

namespace verbena::rdma {

// Neighbours overlap by the largest chunk of a table (kMaxChunkBytes), so that each chunk lies
// within one piece.
inline constexpr size_t kPieceOverlapBytes = size_t{8} << 20;
// To pin 72 MiB takes some 15 ms, and some 100 ms where pages have to be zeroed first: as long as
// other calls of the client may wait for it.
inline constexpr size_t kExposedPieceStride = size_t{64} << 20;
inline constexpr size_t kExposedPieceBytes = kExposedPieceStride + kPieceOverlapBytes;

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_BASE_EXPOSURE_PIECES_H_
