// Gradients of tables with a push codec, encoded into memory of the client's own.
//
// A call is encoded before it is handed to the core, by its own thread, so that a large gradient
// holds up no other call: ClientCore::StartEncoding(), PushEncoding::Run(), ClientCore::Push().
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

#include "proto/record.h"
#include "proto/table_spec.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

// What encoding has lost so far of each element of a table, added to its next gradient.
class Residual {
 public:
  explicit Residual(uint32_t chunks) : chunks_(chunks) {}
  // `elements` numbers of a chunk, all of it. Waits for another thread that encodes the same chunk.
  void Encode(ElementType type, uint32_t chunk, const float* from, std::byte* to, size_t elements);

 private:
  static constexpr size_t kLocks = 64;
  std::array<std::mutex, kLocks> locks_;  // of chunks, by number
  // Made when the chunk is first encoded.
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
    size_t offset = 0;                        // in it
    std::shared_ptr<rdma::MemoryBlock> to;
  };
  explicit PushEncoding(Call call) : call_(std::move(call)) {}

  // Bytes from one encoded chunk of so many elements to the next one.
  static size_t Stride(ElementType type, uint32_t elements) {
    return (PayloadBytes(type, elements) + kRecordAlignment - 1) / kRecordAlignment *
           kRecordAlignment;
  }
  // All chunks, once.
  void Run();
  // What is to be sent, from its beginning on.
  const std::shared_ptr<rdma::MemoryBlock>& block() const { return call_.to; }

 private:
  const Call call_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_PUSH_ENCODING_H_
