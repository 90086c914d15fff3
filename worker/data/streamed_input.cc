#include "worker/data/streamed_input.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/block_cache.h"
#include "worker/data/criteo_reader.h"
#include "worker/data/libsvm_reader.h"

namespace verbena::worker {
namespace {

// Parts that are read side by side: so many workers read a file once between them.
constexpr uint64_t kStreams = 16;
// The windows' share of the memory; the rest is for blocks that lie only partly in a window,
// and for those that are read ahead.
constexpr uint64_t kWindowShare = 7, kWindowShareOf = 12;
constexpr uint64_t kLeastBlock = 4096, kGreatestBlock = 256 * 1024;
constexpr uint64_t kBlocksInMemory = 384;

// Bytes of an example in the order of a window.
constexpr uint64_t kOrderBytes = sizeof(uint32_t);
constexpr uint64_t kRowBytes = sizeof(float) + sizeof(uint64_t) + kOrderBytes;
constexpr uint64_t kCriteoRowBytes =
    kRowBytes + kCriteoIntegers * sizeof(float) + kCriteoCategories * sizeof(uint64_t);
// A feature is a space, a digit, a colon and a digit, or longer, and becomes a key and a value.
constexpr uint64_t kLibsvmGrowth = 3;

// Upper bound of the bytes of all examples of the index in memory.
uint64_t BytesInMemory(const InputIndex& index) {
  switch (index.format()) {
    case ExampleFormat::kByte:
      return index.examples() * (1 + kOrderBytes);
    case ExampleFormat::kLibsvm:
      return index.bytes() * kLibsvmGrowth + index.examples() * kRowBytes;
    case ExampleFormat::kCriteo:
      break;
  }
  return index.examples() * kCriteoRowBytes;
}

uint64_t BytesInMemory(const InputPart& part) {
  const double share =
      static_cast<double>(part.count) / static_cast<double>(part.index->examples());
  return static_cast<uint64_t>(static_cast<double>(BytesInMemory(*part.index)) * share);
}

absl::Status Parse(const InputIndex& index, uint64_t block, uint64_t max_index,
                   const std::string& text, uint64_t line, KeyedExamples* out) {
  const std::string& name = index.FileOf(block).name;
  absl::Status status;
  if (index.format() == ExampleFormat::kCriteo) {
    CriteoParser parser(name, out, line);
    status = parser.Parse(text);
    if (status.ok()) status = parser.Finish();
    return status;
  }
  LibsvmParser parser(name, max_index, out, line);
  status = parser.Parse(text);
  if (status.ok()) status = parser.Finish();
  return status;
}

// Room for a block's examples, so that its buffers do not grow (and are not copied) as it is
// parsed.
void Reserve(const InputIndex& index, uint64_t block, const std::string& text, KeyedExamples* to) {
  const uint64_t rows = index.ExamplesOf(block);
  const bool criteo = index.format() == ExampleFormat::kCriteo;
  // A feature has a colon.
  const uint64_t keys = criteo ? rows * kCriteoCategories
                               : static_cast<uint64_t>(std::count(text.begin(), text.end(), ':'));
  to->labels.reserve(rows);
  to->row_begin.reserve(rows + 1);
  to->keys.reserve(keys);
  if (criteo) {
    to->inputs.reserve(rows * kCriteoIntegers);
  } else {
    to->values.reserve(keys);
  }
}

absl::StatusOr<LoadedBlock<KeyedExamples>> LoadExamples(const InputIndex& index, uint64_t block,
                                                        uint64_t max_index) {
  std::string text;
  if (absl::Status status = index.Read(block, &text); !status.ok()) return status;
  KeyedExamples examples;
  Reserve(index, block, text, &examples);
  if (!Parse(index, block, max_index, text, 1, &examples).ok()) {
    // Only an error needs the number of its line.
    const absl::StatusOr<uint64_t> line = index.LineOf(block);
    if (!line.ok()) return line.status();
    KeyedExamples again;
    absl::Status status = Parse(index, block, max_index, text, *line, &again);
    if (!status.ok()) return status;
  }
  if (examples.rows() != index.ExamplesOf(block)) {
    return absl::FailedPreconditionError(
        absl::StrCat(index.FileOf(block).name, ": was changed after training began; start again"));
  }
  // Colons of comments have no feature.
  examples.keys.shrink_to_fit();
  examples.values.shrink_to_fit();
  const uint64_t bytes = BytesOf(examples);
  return LoadedBlock<KeyedExamples>{std::make_shared<const KeyedExamples>(std::move(examples)),
                                    bytes};
}

// A part of an index, and its blocks: common to both kinds of sets.
template <typename T>
class Blocks {
 public:
  // No budget: all are kept.
  Blocks(const InputPart& part, uint64_t memory, typename BlockCache<T>::Load load)
      : part_(part),
        whole_(BytesInMemory(part) <= memory),
        order_(OrderFor(part.count, BytesInMemory(part), memory)),
        cache_(std::move(load), whole_ ? UINT64_MAX : memory) {}

  const InputOrder& order() const { return order_; }
  uint64_t count() const { return part_.count; }

  absl::Status ReadIfWhole() {
    if (!whole_ || part_.count == 0) return absl::OkStatus();
    const uint64_t last = part_.index->BlockOf(part_.first + part_.count - 1);
    for (uint64_t b = part_.index->BlockOf(part_.first); b <= last; ++b) {
      if (const auto block = cache_.Get(b); !block.ok()) return block.status();
    }
    return absl::OkStatus();
  }

  void Want(absl::Span<const uint64_t> ids) {
    if (whole_) return;
    wanted_.clear();
    for (const uint64_t id : ids) wanted_.push_back(part_.index->BlockOf(part_.first + id));
    std::sort(wanted_.begin(), wanted_.end());
    wanted_.erase(std::unique(wanted_.begin(), wanted_.end()), wanted_.end());
    for (const uint64_t block : wanted_) cache_.Want(block);
  }

  // The block of an example, valid until the next call, and the example's place in it.
  absl::StatusOr<const T*> Find(uint64_t id, uint64_t* place) {
    const uint64_t example = part_.first + id;
    if (current_ == nullptr || example < first_ || example >= end_) {
      const uint64_t block = part_.index->BlockOf(example);
      absl::StatusOr<std::shared_ptr<const T>> content = cache_.Get(block);
      if (!content.ok()) return content.status();
      current_ = *std::move(content);
      first_ = part_.index->FirstExampleOf(block);
      end_ = first_ + part_.index->ExamplesOf(block);
    }
    *place = example - first_;
    return current_.get();
  }

 private:
  const InputPart part_;
  const bool whole_;
  const InputOrder order_;
  BlockCache<T> cache_;
  std::vector<uint64_t> wanted_;
  // The block found last, and its examples.
  std::shared_ptr<const T> current_;
  uint64_t first_ = 0, end_ = 0;
};

class StreamedExamples final : public ExampleSource {
 public:
  StreamedExamples(const InputPart& part, uint64_t memory, uint64_t max_index)
      : blocks_(part, memory, [index = part.index, max_index](uint64_t block) {
          return LoadExamples(*index, block, max_index);
        }) {
    if (part.index->format() == ExampleFormat::kCriteo) shape_ = CriteoShape();
    shape_.features = part.index->features();
  }

  absl::Status ReadIfWhole() { return blocks_.ReadIfWhole(); }
  uint64_t rows() const override { return blocks_.count(); }
  const KeyedExamples& shape() const override { return shape_; }
  InputOrder order() const override { return blocks_.order(); }
  void WillFetch(absl::Span<const uint64_t> ids) override { blocks_.Want(ids); }

  absl::Status Fetch(absl::Span<const uint64_t> ids, KeyedExamples* out) override {
    ClearRows(shape_, out);
    for (const uint64_t id : ids) {
      uint64_t row = 0;
      const absl::StatusOr<const KeyedExamples*> block = blocks_.Find(id, &row);
      if (!block.ok()) return block.status();
      AppendRow(**block, row, out);
    }
    return absl::OkStatus();
  }

 private:
  Blocks<KeyedExamples> blocks_;
  KeyedExamples shape_;
};

class StreamedBytes final : public ByteSource {
 public:
  StreamedBytes(const InputPart& part, uint64_t memory)
      : blocks_(part, memory,
                [index = part.index](uint64_t block) -> absl::StatusOr<LoadedBlock<std::string>> {
                  auto bytes = std::make_shared<std::string>();
                  if (absl::Status s = index->Read(block, bytes.get()); !s.ok()) return s;
                  const uint64_t size = bytes->size();
                  return LoadedBlock<std::string>{std::move(bytes), size};
                }) {}

  absl::Status ReadIfWhole() { return blocks_.ReadIfWhole(); }
  uint64_t size() const override { return blocks_.count(); }
  InputOrder order() const override { return blocks_.order(); }
  void WillFetch(absl::Span<const uint64_t> positions) override { blocks_.Want(positions); }

  absl::Status Fetch(absl::Span<const uint64_t> positions, uint64_t before,
                     std::vector<uint8_t>* out) override {
    out->assign(positions.size() * (before + 1), 0);
    uint8_t* to = out->data();
    for (const uint64_t position : positions) {
      absl::Status status = Copy(position, std::min(position, before) + 1, to + before + 1);
      if (!status.ok()) return status;
      to += before + 1;
    }
    return absl::OkStatus();
  }

 private:
  // The `count` bytes that end with the one at `position`, to in front of `end`.
  absl::Status Copy(uint64_t position, uint64_t count, uint8_t* end) {
    while (count > 0) {
      uint64_t place = 0;
      const absl::StatusOr<const std::string*> block = blocks_.Find(position, &place);
      if (!block.ok()) return block.status();
      const uint64_t n = std::min(count, place + 1);
      std::copy_n((*block)->data() + place + 1 - n, n, end - n);
      end -= n;
      count -= n;
      position -= n;
    }
    return absl::OkStatus();
  }

  Blocks<std::string> blocks_;
};

}  // namespace

uint64_t BlockBytesFor(uint64_t memory) {
  return std::clamp(memory / kBlocksInMemory, kLeastBlock, kGreatestBlock);
}

InputOrder OrderFor(uint64_t examples, uint64_t bytes, uint64_t memory) {
  if (bytes <= memory) return {};
  const uint64_t an_example = (bytes + examples - 1) / examples;
  const uint64_t of_windows = memory / kWindowShareOf * kWindowShare;
  return {.streams = kStreams, .window = std::max<uint64_t>(of_windows / kStreams / an_example, 1)};
}

absl::StatusOr<ExampleSet> StreamExamples(const InputPart& part, uint64_t memory,
                                          uint64_t max_index) {
  auto examples = std::make_shared<StreamedExamples>(part, memory, max_index);
  if (absl::Status status = examples->ReadIfWhole(); !status.ok()) return status;
  return ExampleSet(std::move(examples));
}

absl::StatusOr<ByteSet> StreamBytes(const InputPart& part, uint64_t memory) {
  auto bytes = std::make_shared<StreamedBytes>(part, memory);
  if (absl::Status status = bytes->ReadIfWhole(); !status.ok()) return status;
  return ByteSet(std::move(bytes));
}

}  // namespace verbena::worker
