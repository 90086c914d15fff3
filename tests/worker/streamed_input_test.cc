#include "worker/data/streamed_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/read_examples.h"
#include "tests/worker/temporary_file.h"
#include "worker/train/random.h"
#include "worker/train/schedule.h"

namespace verbena::worker {
namespace {

constexpr uint64_t kRows = 5000;
constexpr uint64_t kLittleMemory = 1 << 16;  // the lines below take more

// Line i has the one feature i + 1, so that a key names its line.
std::string NumberedLines(const std::string& end_of_line, bool last_end) {
  std::string text;
  for (uint64_t i = 0; i < kRows; ++i) {
    text += std::to_string(i % 2) + " " + std::to_string(i + 1) + ":0.5";
    if (i % 7 == 0) text += end_of_line + (i % 2 == 0 ? "" : "   # nothing");
    if (i + 1 < kRows || last_end) text += end_of_line;
  }
  return text;
}

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

IndexOptions SmallBlocks(ExampleFormat format = ExampleFormat::kLibsvm) {
  return {.format = format, .block_bytes = BlockBytesFor(kLittleMemory)};
}

std::shared_ptr<const InputIndex> IndexOf(const std::vector<std::string>& paths,
                                          const IndexOptions& options) {
  Spool spool(kTestSpoolBytes);
  auto index = InputIndexer::Index(paths, options, &spool);
  INFO(index.status());
  REQUIRE(index.ok());
  return *index;
}

ExampleSet Streamed(const std::shared_ptr<const InputIndex>& index) {
  return *StreamExamples({index, 0, index->examples()}, kLittleMemory, LibsvmParser::kMaxIndex);
}

std::string ReadErrorOf(const std::vector<std::string>& paths, const ReadOptions& options) {
  return std::string(ReadExamples(paths, options).status().message());
}

// By step of an epoch: the keys of all ranks' examples in order, each rank with a set of its own.
std::vector<std::vector<uint64_t>> KeysOfSteps(const std::shared_ptr<const InputIndex>& index,
                                               uint64_t workers, uint64_t first_step = 0) {
  std::vector<std::vector<uint64_t>> steps;
  for (uint64_t rank = 0; rank < workers; ++rank) {
    const ExampleSet set = Streamed(index);
    Schedule schedule(set->rows(), 100, workers, rank, 3, set->order());
    REQUIRE(schedule.windowed());
    steps.resize(schedule.steps_per_epoch());
    KeyedExamples examples;
    for (uint64_t step = first_step; step < steps.size(); ++step) {
      const auto ids = schedule.Step(step).ids;
      set->WillFetch(ids);
      REQUIRE(set->Fetch(ids, &examples).ok());
      steps[step].insert(steps[step].end(), examples.keys.begin(), examples.keys.end());
    }
  }
  return steps;
}

TEST_CASE("ranks read every line once, in the same batches for 1 to 7 workers") {
  const std::string plain = NumberedLines("\n", true);
  const std::string half = plain.substr(0, plain.find('\n', plain.size() / 2) + 1);
  const std::vector<std::vector<std::string>> inputs = {
      {plain},
      {NumberedLines("\r\n", true)},
      {NumberedLines("\n", false)},
      {"\xef\xbb\xbf" + plain},
      {Gzip(plain)},
      {Gzip(half) + Gzip(plain.substr(half.size())) + std::string(512, '\0')},
      {Zstd(plain)},
      {Zstd(half) + Zstd(plain.substr(half.size()))},
      {half, Gzip(plain.substr(half.size()))},
  };
  const TemporaryFile reference(plain);
  const auto expected = KeysOfSteps(IndexOf({reference.path()}, SmallBlocks()), 1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    INFO("input " << i);
    std::vector<std::unique_ptr<TemporaryFile>> files;
    std::vector<std::string> paths;
    for (const std::string& content : inputs[i]) {
      files.push_back(std::make_unique<TemporaryFile>(content));
      paths.push_back(files.back()->path());
    }
    const auto index = IndexOf(paths, SmallBlocks());
    REQUIRE(index->examples() == kRows);
    for (const uint64_t workers : {1, 2, 3, 4, 5, 6, 7}) {
      const auto steps = KeysOfSteps(index, workers);
      std::vector<uint64_t> keys;
      for (const auto& of_step : steps) keys.insert(keys.end(), of_step.begin(), of_step.end());
      std::sort(keys.begin(), keys.end());
      REQUIRE(keys.size() == kRows);
      for (uint64_t k = 0; k < kRows; ++k) REQUIRE(keys[k] == k);
      // Where blocks end differs from input to input, windows do not.
      if (index->bytes() == plain.size()) CHECK(steps == expected);
      if (workers > 1) CHECK(steps == KeysOfSteps(index, 1));
    }
  }
}

TEST_CASE("a run that begins at a later step has the same examples") {
  const TemporaryFile file(NumberedLines("\n", true));
  const auto index = IndexOf({file.path()}, SmallBlocks());
  const auto whole = KeysOfSteps(index, 3);
  for (const uint64_t first : {1, 17, 49}) {
    const auto later = KeysOfSteps(index, 3, first);
    for (uint64_t step = first; step < whole.size(); ++step) CHECK(later[step] == whole[step]);
  }
}

TEST_CASE("a rank reads its part of the input, and every batch comes from all parts") {
  const InputOrder order = {.streams = 16, .window = 50};
  for (const uint64_t rank : {0, 3}) {
    Schedule schedule(16000, 160, 4, rank, 1, order);
    std::set<uint64_t> streams;
    for (uint64_t step = 0; step < 200; ++step) {
      for (const uint64_t id : schedule.Step(step).ids) streams.insert(id / 1000);
    }
    CHECK(streams == std::set<uint64_t>{4 * rank, 4 * rank + 1, 4 * rank + 2, 4 * rank + 3});
  }
  Schedule all(16000, 160, 1, 0, 1, order);
  const auto ids = all.Step(7).ids;
  for (uint64_t i = 0; i < 160; ++i) CHECK(ids[i] / 1000 == i / 10);
}

TEST_CASE("windows cover every example once for odd sizes, too") {
  for (const uint64_t examples : {1, 2, 15, 97, 1000, 1013}) {
    for (const uint64_t batch : {1, 3, 16, 100}) {
      for (const uint64_t window : {1, 2, 7, 999}) {
        std::vector<uint64_t> seen;
        const InputOrder order = {.streams = 16, .window = window};
        for (uint64_t rank = 0; rank < 3; ++rank) {
          Schedule schedule(examples, batch, 3, rank, 1, order);
          const uint64_t epoch = schedule.steps_per_epoch();
          for (uint64_t step = epoch; step < 2 * epoch; ++step) {
            const auto ids = schedule.Step(step).ids;
            seen.insert(seen.end(), ids.begin(), ids.end());
          }
        }
        std::sort(seen.begin(), seen.end());
        REQUIRE(seen.size() == examples);
        for (uint64_t i = 0; i < examples; ++i) REQUIRE(seen[i] == i);
      }
    }
  }
}

TEST_CASE("regression: more than 2^32 examples in memory are several windows") {
  // Their places in a window have 32 bits, and would be those of the first ones again.
  const uint64_t most = uint64_t{1} << 32;
  CHECK_FALSE(Schedule(most, 64, 1, 0, 7).windowed());
  CHECK(Schedule(most + 1, 64, 1, 0, 7).windowed());
}

TEST_CASE("the line of an error is right in any block and file") {
  std::string bad = NumberedLines("\r\n", true);
  bad += "\n1 7:x\n" + NumberedLines("\n", true);
  const TemporaryFile good(NumberedLines("\n", false));
  const TemporaryFile file("\xef\xbb\xbf" + bad);
  const auto lines =
      static_cast<size_t>(std::count(bad.begin(), bad.begin() + bad.find('x'), '\n'));
  const std::string expected = file.path() + ":" + std::to_string(lines + 1) +
                               ": field 2 \"7:x\": bad value; allowed: a finite decimal number";
  CHECK(ReadErrorOf({good.path(), file.path()},
                    {.index = SmallBlocks(), .memory = kLittleMemory}) == expected);
  CHECK(ReadErrorOf({good.path(), file.path()}, {.index = SmallBlocks()}) == expected);
  IndexOptions parses = SmallBlocks();
  parses.parse = true;
  CHECK(ReadErrorOf({file.path()}, {.index = parses}) == expected);
}

TEST_CASE("numbers of any length, tiny numbers and 64-bit indices are read") {
  const std::string digits(70, '3');
  const TemporaryFile file("1 1:1e-400 2:-1e-400 3:0." + digits + " 67108865:" + digits +
                           "e-69 9223372036854775808:1\n");
  const auto examples = ReadExamples({file.path()}, {.index = SmallBlocks()});
  INFO(examples.status());
  REQUIRE(examples.ok());
  CHECK(examples->values == std::vector<float>{0, 0, 0.33333333f, 3.3333333f, 1});
  CHECK(examples->keys == std::vector<uint64_t>{0, 1, 2, 67108864, 9223372036854775807u});
  const TemporaryFile zeros("1\t" + std::string(60, '0') + "7" + std::string(38, '\t') + "\n");
  const auto criteo = ReadCriteo({zeros.path()});
  REQUIRE(criteo.ok());
  CHECK(criteo->inputs[0] == Approx(std::log(8.0)));
}

TEST_CASE("encodings that are not read are named, and damaged ones refused") {
  const auto error = [](const std::string& content) {
    const TemporaryFile file(content);
    const std::string message = ReadErrorOf({file.path()}, {.index = SmallBlocks()});
    CHECK(message.find(file.path()) == 0);
    return message.substr(std::min(file.path().size(), message.size()));
  };
  CHECK(error(std::string("\xfd"
                          "7zXZ\0",
                          6)) == ": is xz; allowed: plain, gzip or zstd. Convert it, as by xz -dc");
  CHECK(error("BZh91AY") ==
        ": is bzip2; allowed: plain, gzip or zstd. Convert it, as by bzip2 -dc");
  CHECK(error("\xff\xfe"
              "1") ==
        ": is UTF-16; allowed: plain, gzip or zstd. Convert it, as by iconv -f UTF-16 -t UTF-8");
  const std::string gzip = Gzip(NumberedLines("\n", true));
  CHECK(error(gzip.substr(0, gzip.size() / 2)) ==
        ": the gzip data is damaged: it ends in the middle; get the file again (gzip -t FILE tests "
        "it)");
  CHECK(error(gzip + "x").find(": the gzip data is damaged: ") == 0);
  std::string flipped = gzip;
  flipped[gzip.size() / 2] ^= 0x55;
  CHECK(error(flipped).find(": the gzip data is damaged: ") == 0);
  const std::string zstd = Zstd(NumberedLines("\n", true));
  CHECK(error(zstd.substr(0, zstd.size() / 2)) ==
        ": the zstd data is damaged: it ends in the middle; get the file again (zstd -t FILE tests "
        "it)");
  CHECK(error(Gzip("")) == ": the file is empty");
}

TEST_CASE("regression: a compressed file whose content fills the buffers exactly is whole") {
  for (const size_t size : {64 << 10, 256 << 10, 512 << 10, 1 << 20, 5 << 19}) {
    INFO(size);
    std::string text(size, '\0');
    uint64_t state = size;
    for (char& c : text) c = static_cast<char>('a' + (state = Mix(state)) % 16);
    for (const std::string& content : {Zstd(text), Zstd(text) + Zstd(text), Gzip(text)}) {
      const TemporaryFile file(content);
      const auto index = IndexOf({file.path()}, SmallBlocks(ExampleFormat::kByte));
      CHECK(index->bytes() % size == 0);
    }
  }
}

TEST_CASE("a pipe is read once, into a copy of bounded size") {
  const std::string text = NumberedLines("\n", true);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("verbena-fifo-" + std::to_string(getpid())))
          .string();
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const auto write = [&] { std::ofstream(path, std::ios::binary) << text; };
  {
    std::thread writer(write);
    const auto index = IndexOf({path}, SmallBlocks());
    writer.join();
    CHECK(index->examples() == kRows);
    CHECK(KeysOfSteps(index, 2) == KeysOfSteps(index, 1));
  }
  {
    std::thread writer(write);
    Spool small(text.size() - 1);
    const auto index = InputIndexer::Index({path}, SmallBlocks(), &small);
    writer.join();
    CHECK(absl::IsResourceExhausted(index.status()));
    CHECK(index.status().message() ==
          path + ": temporary copies of pipes and compressed files take more than " +
              std::to_string(text.size() - 1) +
              " bytes; raise --spool-bytes, or give a plain file");
  }
  unlink(path.c_str());
  IndexOptions refuses = SmallBlocks();
  refuses.refuse_pipes = "of which each worker would read a part";
  Spool spool(kTestSpoolBytes);
  CHECK(InputIndexer::Index({"/dev/null"}, refuses, &spool).status().message() ==
        "/dev/null: is not a regular file, of which each worker would read a part");
}

TEST_CASE("a file that changes while it is read is an error, not other examples") {
  const TemporaryFile file(NumberedLines("\n", true));
  const auto index = IndexOf({file.path()}, SmallBlocks());
  const ExampleSet set = Streamed(index);
  std::ofstream(file.path(), std::ios::app) << "1 1:1\n";
  struct timespec times[2] = {{0, UTIME_OMIT}, {1, 0}};
  REQUIRE(utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);
  KeyedExamples examples;
  CHECK(set->Fetch({kRows / 2}, &examples).message() ==
        file.path() + ": was changed after training began; start again");
}

TEST_CASE("text is read across blocks and files, and its end held out") {
  std::string text;
  for (uint64_t i = 0; i < 30000; ++i) text.push_back(static_cast<char>(i * 7 + i / 251));
  const TemporaryFile first(text.substr(0, 12345));
  const TemporaryFile second(text.substr(12345));
  const auto index = IndexOf({first.path(), second.path()}, SmallBlocks(ExampleFormat::kByte));
  REQUIRE(index->blocks() > 6);
  const auto parts = SplitInputs({index, nullptr}, 0.25);
  REQUIRE(parts.ok());
  CHECK(parts->train.count == 22500);
  CHECK(parts->test.first == 22500);
  CHECK(*ReadBytes(parts->train) == text.substr(0, 22500));
  CHECK(*ReadBytes(parts->test) == text.substr(22500));
  constexpr uint64_t kBefore = 6;
  for (const InputPart& part : {parts->train, parts->test}) {
    const ByteSet in_memory(*ReadBytes(part));
    for (const uint64_t memory : {uint64_t{1}, uint64_t{1} << 20}) {
      const auto streamed = StreamBytes(part, memory);
      REQUIRE(streamed.ok());
      std::vector<uint64_t> all(part.count);
      std::iota(all.begin(), all.end(), uint64_t{0});
      std::vector<uint8_t> expected, got;
      REQUIRE(in_memory->Fetch(all, kBefore, &expected).ok());
      REQUIRE((*streamed)->Fetch(all, kBefore, &got).ok());
      CHECK(got == expected);
    }
  }
  const auto given = SplitInputs({index, index}, 0.25);
  REQUIRE(given.ok());
  CHECK(given->train.count == text.size());
  CHECK(given->test.count == text.size());
}

TEST_CASE("empty and missing text files are errors that name them") {
  const TemporaryFile empty("");
  Spool spool(kTestSpoolBytes);
  const IndexOptions bytes = {.format = ExampleFormat::kByte};
  CHECK(InputIndexer::Index({empty.path()}, bytes, &spool).status().message() ==
        empty.path() + ": the file is empty");
  CHECK(absl::IsNotFound(InputIndexer::Index({"/nonexistent/text"}, bytes, &spool).status()));
}

}  // namespace
}  // namespace verbena::worker
