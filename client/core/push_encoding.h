// Gradients of tables with a push codec, encoded into memory of the client.
//
// The caller's thread encodes before the call enters the core, so that a large gradient does not
// delay other calls: ClientCore::StartEncoding(), PushEncoding::Run(), ClientCore::Push().
//
// **Thread safety**: Residual is thread-safe. A PushEncoding belongs to one thread.
#ifndef VERBENA_CLIENT_CORE_PUSH_ENCODING_H_
#define VERBENA_CLIENT_CORE_PUSH_ENCODING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "proto/spec/table_spec.h"
#include "proto/wire/record.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

// The encoding error of each element of a table, which is added to its next gradient.
class Residual {
 public:
  explicit Residual(uint32_t chunks) : chunks_(chunks) {}
  // Encodes the `elements` numbers of a whole chunk. Waits for another thread that encodes the same
  // chunk.
  void Encode(ElementType type, uint32_t chunk, const float* from, std::byte* to, size_t elements);

 private:
  static constexpr size_t kLocks = 64;
  std::array<std::mutex, kLocks> locks_;  // by chunk number
  // Allocated when the chunk is first encoded.
  std::vector<std::unique_ptr<float[]>> chunks_;
};

class PushEncoding {
 public:
  struct Call {
    std::shared_ptr<Residual> residual;
    DenseLayout layout;
    ElementType type;
    uint32_t first = 0, chunks = 0;
    std::shared_ptr<rdma::MemoryBlock> from;  // kept alive
    size_t offset = 0;                        // in `from`
    std::shared_ptr<rdma::MemoryBlock> to;
  };
  explicit PushEncoding(Call call) : call_(std::move(call)) {}

  // Bytes from one encoded chunk of this many elements to the next one.
  static size_t Stride(ElementType type, uint32_t elements) {
    return (PayloadBytes(type, elements) + kRecordAlignment - 1) / kRecordAlignment *
           kRecordAlignment;
  }
  // Encodes all chunks; call once.
  void Run();
  // The data to send, from its start.
  const std::shared_ptr<rdma::MemoryBlock>& block() const { return call_.to; }

 private:
  const Call call_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_PUSH_ENCODING_H_
