// Finds out how an input is encoded, and decodes gzip and zstd as a stream.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_DATA_DECOMPRESSOR_H_
#define VERBENA_WORKER_DATA_DECOMPRESSOR_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::worker {

enum class Encoding { kPlain, kGzip, kZstd };

// Bytes of an input's start that determine its encoding.
inline constexpr size_t kEncodingBytes = 8;

// By the first bytes; fewer than kEncodingBytes are the whole input. INVALID_ARGUMENT for
// encodings that are known and not read (xz, bzip2, UTF-16, ...), with the fix.
absl::StatusOr<Encoding> EncodingOf(std::string_view name, std::string_view first_bytes);

class Decompressor {
 public:
  using Sink = std::function<absl::Status(std::string_view)>;

  virtual ~Decompressor() = default;
  // `encoding` is not kPlain. `name` is the input's, for errors.
  static std::unique_ptr<Decompressor> Create(Encoding encoding, std::string name);

  // Any piece; gives the decoded bytes, in pieces of at most 256 KiB. INVALID_ARGUMENT: damaged.
  // The first error of `sink` ends it.
  virtual absl::Status Decode(std::string_view piece, const Sink& sink) = 0;
  // The input ends. INVALID_ARGUMENT: in the middle.
  virtual absl::Status Finish() = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_DECOMPRESSOR_H_
