// Any bytes as a file of any format: an index and every example of it, or an error; never a crash.
// With small blocks and little memory, a read example by example equals a read of all.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/data/input_indexer.h"
#include "worker/data/libsvm_reader.h"
#include "worker/data/streamed_input.h"

using namespace verbena::worker;

std::vector<std::string> verbena::fuzz::Seeds() {
  const std::string criteo = "1" + std::string(39, '\t') + "\r\n";
  const std::string gzip(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x33\x54\x30\xb4\x32\xe4\x02\x00\x81\x4b\xc6\xf8\x06"
      "\x00\x00\x00",
      26);
  const std::string zstd(
      "\x28\xb5\x2f\xfd\x04\x58\x31\x00\x00\x31\x20\x31\x3a\x31\x0a\x5d\x5a\x82\x48", 19);
  return {std::string("\x00", 1) + "any bytes",
          "\x01\xef\xbb\xbf"
          "1 1:1\n\n# c\n0 2:1\r\n1 7:1",
          "\x02" + criteo + criteo,
          "\x01" + gzip,
          "\x01" + zstd,
          std::string("\x04\xfd"
                      "7zXZ\0\0",
                      8)};
}

namespace {

// A file without a name.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    FUZZ_CHECK(write(fd_, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  }
  ~MemoryFile() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void CheckExamples(const std::shared_ptr<const InputIndex>& index) {
  const InputPart part = {index, 0, index->examples()};
  const auto whole = StreamExamples(part, uint64_t{1} << 30, LibsvmParser::kMaxIndex);
  const auto parts = StreamExamples(part, 1, LibsvmParser::kMaxIndex);
  FUZZ_CHECK(parts.ok());
  std::vector<uint64_t> ids(part.count);
  for (uint64_t i = 0; i < part.count; ++i) ids[i] = part.count - 1 - i;
  KeyedExamples all, again;
  const absl::Status status = (*parts)->Fetch(ids, &again);
  FUZZ_CHECK(status.ok() == whole.ok());
  if (!whole.ok()) return;
  FUZZ_CHECK((*whole)->Fetch(ids, &all).ok());
  FUZZ_CHECK(all.keys == again.keys && all.labels == again.labels && all.values == again.values);
  FUZZ_CHECK(all.rows() == part.count);
}

void CheckBytes(const std::shared_ptr<const InputIndex>& index) {
  const InputPart part = {index, 0, index->examples()};
  const auto text = ReadBytes(part);
  const auto bytes = StreamBytes(part, 1);
  FUZZ_CHECK(text.ok() && bytes.ok() && text->size() == part.count);
  std::vector<uint8_t> out;
  for (uint64_t i = 0; i < part.count; ++i) {
    const std::vector<uint64_t> ids = {i};
    FUZZ_CHECK((*bytes)->Fetch(ids, 2, &out).ok() && out.size() == 3);
    for (uint64_t k = 0; k < 3; ++k) {
      FUZZ_CHECK(out[2 - k] == (k > i ? 0 : static_cast<uint8_t>((*text)[i - k])));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const MemoryFile file(std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  IndexOptions options;
  options.format = static_cast<ExampleFormat>(data[0] % 3);
  options.parse = data[0] % 8 >= 6;
  options.block_bytes = 1 + data[0] / 8;
  Spool spool(1 << 20);
  const auto index = InputIndexer::Index({file.path()}, options, &spool);
  if (!index.ok()) {
    FUZZ_CHECK(index.status().message().find(file.path()) != absl::string_view::npos);
    return 0;
  }
  FUZZ_CHECK((*index)->examples() > 0);
  const auto copy = InputIndex::FromBytes((*index)->ToBytes());
  // The copies' descriptors are the original's.
  if (copy.ok()) {
    FUZZ_CHECK((*copy)->ToBytes() == (*index)->ToBytes());
    for (const InputIndex::File& of_copy : (*copy)->files()) {
      const_cast<InputIndex::File&>(of_copy).copy.release();
    }
  }
  FUZZ_CHECK(copy.ok());
  options.format == ExampleFormat::kByte ? CheckBytes(*index) : CheckExamples(*index);
  return 0;
}
