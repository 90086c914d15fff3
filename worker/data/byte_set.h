// Where the text model takes its bytes from: memory, or files that are read as training goes.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_DATA_BYTE_SET_H_
#define VERBENA_WORKER_DATA_BYTE_SET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/data/input_order.h"

namespace verbena::worker {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual uint64_t size() const = 0;
  virtual InputOrder order() const { return {}; }
  // *out becomes, for each position, the `before` bytes in front of it and the byte there. Bytes
  // before the first are 0.
  virtual absl::Status Fetch(absl::Span<const uint64_t> positions, uint64_t before,
                             std::vector<uint8_t>* out) = 0;
  // These will be fetched soon. Does not wait.
  virtual void WillFetch(absl::Span<const uint64_t> /*positions*/) {}
};

// A handle; copies share the source.
class ByteSet {
 public:
  ByteSet() : ByteSet(std::string()) {}
  // NOLINTNEXTLINE(google-explicit-constructor): bytes in memory are a source of themselves
  ByteSet(std::string bytes);
  // NOLINTNEXTLINE(google-explicit-constructor)
  ByteSet(const char* bytes) : ByteSet(std::string(bytes)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  ByteSet(std::shared_ptr<ByteSource> source) : source_(std::move(source)) {}

  ByteSource* operator->() const { return source_.get(); }

 private:
  std::shared_ptr<ByteSource> source_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_BYTE_SET_H_
