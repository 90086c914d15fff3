// Pieces, attachments, page kinds and nodes of memory blocks.
#include "rdma/memory/memory.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include "rdma/memory/pages.h"
#include "rdma/memory/statistics.h"
#include "rdma/memory/topology.h"
#include "rdma/shm/shared_pages.h"

namespace verbena::rdma {
namespace {

constexpr size_t kPage = 4096;

std::shared_ptr<MemoryBlock> Private(size_t bytes, const PageOptions& options = {}) {
  return MemoryBlock::AllocatePrivate(bytes, options, "test").value();
}

bool Says(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

// Reads all of its memory when it goes, as deregistering would need it.
class Reader : public MemoryBlock::Attachment {
 public:
  Reader(const MemoryBlock& block, std::vector<uint64_t>* sums)
      : data_(block.data()), size_(block.size()), sums_(sums) {}
  ~Reader() override {
    uint64_t sum = 0;
    for (size_t i = 0; i < size_; ++i) sum += std::to_integer<uint64_t>(data_[i]);
    sums_->push_back(sum);
  }

 private:
  const std::byte* data_;
  size_t size_;
  std::vector<uint64_t>* sums_;
};

class Number : public MemoryBlock::Attachment {
 public:
  explicit Number(int n) : number(n) {}
  const int number;
};

int NumberAt(const MemoryBlock& block, const void* key) {
  const auto found = block.FindAttachment(key);
  return found == nullptr ? -1 : static_cast<Number&>(*found).number;
}

TEST_CASE("regression: the error of a region without a free descriptor names the limit") {
  rlimit limit = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int lowest = dup(0);
  close(lowest);
  const rlimit none = {static_cast<rlim_t>(lowest), limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const absl::Status status = MemoryBlock::Allocate(kPage, "test").status();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  INFO(status);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Says(status, "ulimit -n"));
  CHECK(Says(status, std::to_string(lowest)));
}

TEST_CASE("a piece is a range of its block and keeps the block alive") {
  auto whole = Private(10 * kPage);
  const MemoryBlock* root = whole.get();
  const std::weak_ptr<MemoryBlock> weak = whole;
  int released = 0;
  auto piece = MemoryBlock::Piece(whole, kPage, 3 * kPage, [&] {
    CHECK(weak.lock() != nullptr);
    root->data()[kPage] = std::byte{1};
    ++released;
  });
  auto inner = MemoryBlock::Piece(piece, 100, 200, nullptr);
  whole.reset();

  CHECK(piece->data() == root->data() + kPage);
  CHECK(piece->size() == 3 * kPage);
  CHECK(&piece->root() == root);
  CHECK(inner->data() == root->data() + kPage + 100);
  CHECK(inner->size() == 200);
  CHECK(&inner->root() == root);
  CHECK(&root->root() == root);
  CHECK(std::set<uint64_t>{root->id(), piece->id(), inner->id()}.size() == 3);

  piece.reset();
  CHECK(released == 0);  // the inner one needs it
  inner->data()[199] = std::byte{1};
  inner.reset();
  CHECK(released == 1);
  CHECK(weak.expired());
}

TEST_CASE("a piece cannot be shared by itself") {
  auto whole = MemoryBlock::Allocate(2 * kPage, "test").value();
  const auto piece = MemoryBlock::Piece(whole, 0, kPage, nullptr);
  CHECK_FALSE(piece->allocated());
  CHECK(piece->fd() == -1);
  CHECK(piece->root().allocated());
  CHECK_FALSE(Private(kPage)->allocated());
}

TEST_CASE("a piece outside its block is refused") {
  const auto whole = Private(kPage);
  CHECK(MemoryBlock::Piece(nullptr, 0, 1, nullptr) == nullptr);
  CHECK(MemoryBlock::Piece(whole, kPage, 1, nullptr) == nullptr);
  CHECK(MemoryBlock::Piece(whole, kPage + 1, 0, nullptr) == nullptr);
  CHECK(MemoryBlock::Piece(whole, 1, kPage, nullptr) == nullptr);
  CHECK(MemoryBlock::Piece(whole, 1, ~size_t{0}, nullptr) == nullptr);
  CHECK(MemoryBlock::Piece(whole, 1, kPage - 1, nullptr) != nullptr);
}

TEST_CASE("attachments are destroyed before the memory") {
  const int key = 0;
  const int other = 0;
  std::vector<uint64_t> sums;
  std::vector<std::byte> mine(3 * kPage);
  std::shared_ptr<MemoryBlock> block;
  SECTION("of a memfd") { block = MemoryBlock::Allocate(3 * kPage, "test").value(); }
  SECTION("of private memory") { block = Private(3 * kPage); }
  SECTION("of the caller's memory") {
    block = MemoryBlock::Register(mine.data(), mine.size()).value();
  }
  SECTION("of the root of a piece") {
    block = MemoryBlock::Piece(Private(3 * kPage), 0, 3 * kPage, nullptr);
  }
  block->data()[0] = std::byte{40};
  block->data()[3 * kPage - 1] = std::byte{2};
  block->Attach(&key, std::make_shared<Reader>(*block, &sums));
  block->Attach(&other, std::make_shared<Reader>(*block, &sums));
  CHECK(sums.empty());
  block.reset();
  CHECK(sums == std::vector<uint64_t>{42, 42});
}

TEST_CASE("an attachment is found by its key, also from pieces, until it is replaced") {
  const int a = 0;
  const int b = 0;
  const auto whole = Private(kPage);
  const auto piece = MemoryBlock::Piece(whole, 64, 64, nullptr);
  CHECK(whole->FindAttachment(&a) == nullptr);
  piece->Attach(&a, std::make_shared<Number>(1));
  whole->Attach(&b, std::make_shared<Number>(2));
  CHECK(NumberAt(*whole, &a) == 1);
  CHECK(NumberAt(*piece, &b) == 2);

  const std::weak_ptr<MemoryBlock::Attachment> first = whole->FindAttachment(&a);
  auto held = first.lock();
  whole->Attach(&a, std::make_shared<Number>(3));
  CHECK(NumberAt(*piece, &a) == 3);
  CHECK_FALSE(first.expired());  // the caller that found it may finish with it
  held.reset();
  CHECK(first.expired());

  whole->Attach(&a, nullptr);
  CHECK(whole->FindAttachment(&a) == nullptr);
  CHECK(NumberAt(*whole, &b) == 2);
}

TEST_CASE("an attachment may use its block while it is replaced") {
  struct Asking : MemoryBlock::Attachment {
    Asking(const MemoryBlock* b, const void* k, int* s) : block(b), key(k), seen(s) {}
    ~Asking() override { *seen = NumberAt(*block, key); }
    const MemoryBlock* block;
    const void* key;
    int* seen;
  };
  const int key = 0;
  int seen = 0;
  const auto block = Private(kPage);
  block->Attach(&key, std::make_shared<Asking>(block.get(), &key, &seen));
  block->Attach(&key, std::make_shared<Number>(5));
  CHECK(seen == 5);
}

TEST_CASE("threads attach and find at the same time") {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  const auto block = Private(kPage);
  const std::array<int, kThreads> keys = {};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (const int& key : keys) {
    threads.emplace_back([&block, &wrong, &key] {
      for (int i = 0; i < kRounds; ++i) {
        block->Attach(&key, std::make_shared<Number>(i));
        if (NumberAt(*block, &key) != i) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (const int& key : keys) CHECK(NumberAt(*block, &key) == kRounds - 1);
}

TEST_CASE("private memory is zeroed and has the requested size") {
  for (const size_t bytes : {size_t{1}, kPage + 1, 3 * kHugePageBytes}) {
    const auto block = Private(bytes);
    REQUIRE(block->size() == bytes);
    CHECK(std::all_of(block->data(), block->data() + bytes,
                      [](std::byte b) { return b == std::byte{0}; }));
    std::memset(block->data(), 0xff, bytes);
  }
}

TEST_CASE("memory that cannot be allocated is refused with its size and the reason") {
  for (const size_t bytes : {size_t{1} << 60, ~size_t{0}}) {
    const auto shared = MemoryBlock::Allocate(bytes, "test").status();
    CHECK(absl::IsResourceExhausted(shared));
    CHECK(Says(shared, "cannot allocate " + std::to_string(bytes) + " bytes of shared memory"));
    CHECK(Says(shared, "the machine has"));
    const auto own = MemoryBlock::AllocatePrivate(bytes, {}, "test").status();
    CHECK(absl::IsResourceExhausted(own));
    CHECK(Says(own, "cannot allocate " + std::to_string(bytes) + " bytes of private memory"));
  }
  CHECK(absl::IsInvalidArgument(MemoryBlock::AllocatePrivate(0, {}, "test").status()));
}

// ---- page kinds and nodes
// ------------------------------------------------------------------------

uint64_t Counted(PageKind pages, int node) {
  uint64_t bytes = 0;
  for (const auto& entry : GetMemoryStatistics().entries) {
    if (entry.pages == pages && entry.node == node) bytes += entry.bytes;
  }
  return bytes;
}

TEST_CASE("mapped memory is counted by page size and node until it is unmapped") {
  const uint64_t before = Counted(PageKind::kSmall, kAnyNode);
  auto shared = MemoryBlock::Allocate(10, "test").value();
  auto own = Private(2 * kPage);
  const auto piece = MemoryBlock::Piece(own, 0, kPage, nullptr);
  CHECK(shared->pages() == PageKind::kSmall);
  CHECK(Counted(PageKind::kSmall, kAnyNode) == before + 3 * kPage);
  own.reset();
  CHECK(Counted(PageKind::kSmall, kAnyNode) == before + 3 * kPage);  // the piece holds it
  shared.reset();
  CHECK(Counted(PageKind::kSmall, kAnyNode) == before + 2 * kPage);
}

TEST_CASE("without huge pages the statistics have an entry for them") {
  const auto entries = GetMemoryStatistics().entries;
  CHECK(std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.pages == PageKind::kHuge && entry.node == kAnyNode;
  }));
}

TEST_CASE("every node is listed once, the given one first") {
  const int here = NodeOfThisThread();
  REQUIRE(NodeCount() >= 1);
  for (const int from : {here, kAnyNode, 1000}) {
    const std::vector<int> nodes = NodesByDistance(from);
    CHECK(nodes.size() == static_cast<size_t>(NodeCount()));
    CHECK(std::set<int>(nodes.begin(), nodes.end()).size() == nodes.size());
  }
  if (here != kAnyNode) CHECK(NodesByDistance(here).front() == here);
}

TEST_CASE("the node of a device comes from sysfs") {
  char folder[] = "/tmp/verbena-device-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string file = std::string(folder) + "/numa_node";
  CHECK(NodeOfPciDevice(folder) == kAnyNode);  // no such file
  std::ofstream(file) << "3\n";
  CHECK(NodeOfPciDevice(folder) == 3);
  std::ofstream(file) << "-1\n";
  CHECK(NodeOfPciDevice(folder) == kAnyNode);
  std::ofstream(file) << "none\n";
  CHECK(NodeOfPciDevice(folder) == kAnyNode);
  std::remove(file.c_str());
  rmdir(folder);
}

// The node of the page at `address`; kAnyNode: the system does not report it.
int NodeOfPage(const std::byte* address) {
  int node = kAnyNode;
  const long failed = syscall(SYS_get_mempolicy, &node, nullptr, 0, address,  // NOLINT: its type
                              MPOL_F_NODE | MPOL_F_ADDR);
  return failed == 0 ? node : kAnyNode;
}

TEST_CASE("memory is placed on the given node, or anywhere if it does not exist") {
  const int far = NodesByDistance(NodeOfThisThread()).back();
  const auto pages = GENERATE(HugePages::kAuto, HugePages::kOff);
  for (const auto& block : {Private(kHugePageBytes, {far, pages}),
                            MemoryBlock::Allocate(kHugePageBytes, "test", {far, pages}).value()}) {
    std::memset(block->data(), 1, block->size());
    if (Counted(block->pages(), far) == 0 || NodeOfPage(block->data()) == kAnyNode) {
      WARN("this system does not let memory be bound to a node, or not be seen to be");
      continue;
    }
    CHECK(Counted(block->pages(), far) >= kHugePageBytes);
    CHECK(NodeOfPage(block->data()) == far);
    CHECK(NodeOfPage(block->data() + block->size() - 1) == far);
  }
}

TEST_CASE("memory for a node that does not exist is bound to no node") {
  const uint64_t anywhere = Counted(PageKind::kSmall, kAnyNode);
  const auto block = Private(kPage, {1000, HugePages::kOff});
  block->data()[0] = std::byte{1};
  CHECK(Counted(PageKind::kSmall, kAnyNode) == anywhere + kPage);
}

TEST_CASE("huge pages are not used when much of them would be wasted") {
  const uint64_t fallbacks = GetMemoryStatistics().huge_page_fallbacks;
  for (const size_t bytes :
       {kPage, kHugePageBytes - 1, kHugePageBytes + 1, 3 * kHugePageBytes + 1}) {
    CHECK(Private(bytes)->pages() != PageKind::kHuge);
  }
  CHECK(Private(4 * kHugePageBytes, {kAnyNode, HugePages::kOff})->pages() != PageKind::kHuge);
  CHECK(MemoryBlock::Allocate(4 * kHugePageBytes, "test").value()->pages() != PageKind::kHuge);
  CHECK(GetMemoryStatistics().huge_page_fallbacks == fallbacks);
}

constexpr PageOptions kHuge = {kAnyNode, HugePages::kAuto};

TEST_CASE("without enough huge pages ordinary ones are used, and counted") {
  constexpr size_t kMany = size_t{1} << 30;
  const uint64_t fallbacks = GetMemoryStatistics().huge_page_fallbacks;
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  // Until the system has no more; without any, the first one already.
  while (blocks.empty() || blocks.back()->pages() == PageKind::kHuge) {
    if (blocks.size() == 2) {
      WARN("this system has more huge pages than a test should take");
      return;
    }
    auto block = MemoryBlock::AllocatePrivate(kMany, kHuge, "test");
    if (!block.ok()) {
      WARN("this machine is too small: " << block.status());
      return;
    }
    blocks.push_back(*std::move(block));
  }
  CHECK(GetMemoryStatistics().huge_page_fallbacks == fallbacks + 1);
  blocks.back()->data()[kMany - 1] = std::byte{1};
  const auto shared = MemoryBlock::Allocate(kMany, "test", kHuge).value();
  CHECK(shared->size() == kMany);
  shared->data()[kMany - 1] = std::byte{1};
  CHECK(GetMemoryStatistics().huge_page_fallbacks == fallbacks + 2);
}

TEST_CASE("a block in huge pages is counted, sealed, and accepted by a peer") {
  constexpr size_t kBytes = 4 * kHugePageBytes - 1000;
  const uint64_t before = Counted(PageKind::kHuge, kAnyNode);
  auto block = MemoryBlock::Allocate(kBytes, "test", kHuge).value();
  REQUIRE(block->size() == kBytes);
  if (block->pages() != PageKind::kHuge) {
    WARN("this system has no huge pages free: only the fallback was tested");
    return;
  }
  CHECK(Counted(PageKind::kHuge, kAnyNode) == before + 4 * kHugePageBytes);
  const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  CHECK((fcntl(block->fd(), F_GET_SEALS) & wanted) == wanted);
  CHECK(ftruncate(block->fd(), 0) != 0);

  constexpr size_t kOffset = kHugePageBytes + 12'345;
  {
    const auto pages = ForeignPages::Map(block->fd(), kOffset, 3 * kPage, true, "test").value();
    std::memset(pages->data(), 7, pages->size());
    CHECK(block->data()[kOffset - 1] == std::byte{0});
    CHECK(block->data()[kOffset] == std::byte{7});
    CHECK(block->data()[kOffset + 3 * kPage - 1] == std::byte{7});
    CHECK(block->data()[kOffset + 3 * kPage] == std::byte{0});
    CHECK_FALSE(pages->poisoned());
  }
  CHECK(absl::IsFailedPrecondition(
      ForeignPages::Map(block->fd(), kOffset, 4 * kHugePageBytes, true, "test").status()));
  block.reset();
  CHECK(Counted(PageKind::kHuge, kAnyNode) == before);

  const auto own = Private(kBytes);
  CHECK(own->pages() == PageKind::kHuge);
  CHECK(MemoryBlock::Piece(own, 0, 1, nullptr)->pages() == PageKind::kHuge);
}

TEST_CASE("a huge page that a peer punched out and that cannot be replaced poisons its range") {
  auto block = MemoryBlock::Allocate(kHugePageBytes, "test", kHuge).value();
  if (block->pages() != PageKind::kHuge) {
    WARN("this system has no huge pages free");
    return;
  }
  const auto pages = ForeignPages::Map(block->fd(), 0, kPage, true, "test").value();
  pages->data()[0] = std::byte{1};
  REQUIRE(fallocate(block->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kHugePageBytes) ==
          0);
  std::vector<std::shared_ptr<MemoryBlock>> rest = {Private(kHugePageBytes)};
  while (rest.back()->pages() == PageKind::kHuge) {
    if (rest.size() == 512) {
      WARN("this system has more huge pages than a test should take");
      return;
    }
    rest.push_back(Private(kHugePageBytes));
  }
  CHECK(pages->data()[0] == std::byte{0});
  CHECK(pages->poisoned());
}

}  // namespace
}  // namespace verbena::rdma
