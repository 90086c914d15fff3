// A dense table's chunks get their initial values when they are first used.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "shard/table/dense_table.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

// Fresh memory of the system, and how much of it is there.
class PageAllocator final : public Allocator {
 public:
  ~PageAllocator() override {
    while (!mappings_.empty()) Unmap(mappings_.begin());
  }
  Buffer Allocate(size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return {};
    mappings_[static_cast<std::byte*>(data)] = bytes;
    return {static_cast<std::byte*>(data), bytes};
  }
  void Free(const Buffer& buffer) override { Unmap(mappings_.find(buffer.data)); }

  // Mappings of which some page is there.
  size_t touched() const {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return static_cast<size_t>(
        std::count_if(mappings_.begin(), mappings_.end(), [page](const auto& mapping) {
          std::vector<unsigned char> there((mapping.second + page - 1) / page);
          REQUIRE(mincore(mapping.first, mapping.second, there.data()) == 0);
          return std::any_of(there.begin(), there.end(), [](unsigned char p) { return p & 1; });
        }));
  }

 private:
  using Mappings = std::map<std::byte*, size_t>;
  void Unmap(Mappings::iterator mapping) {
    munmap(mapping->first, mapping->second);
    mappings_.erase(mapping);
  }
  Mappings mappings_;
};

constexpr uint32_t kPartitions = 4;

v1::Table NormalTable(v1::DType dtype, uint64_t elements, uint64_t chunk_bytes) {
  v1::Table table;
  table.set_id(kTable);
  v1::TableSpec* spec = table.mutable_spec();
  spec->set_name("table");
  spec->add_shape(elements);
  spec->set_dtype(dtype);
  spec->set_gradient_dtype(v1::DTYPE_F32);
  spec->set_consistency(v1::CONSISTENCY_ASYNC);
  spec->set_chunk_bytes(chunk_bytes);
  spec->mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec->mutable_initializer()->set_b(1);
  spec->mutable_optimizer()->set_name("momentum");
  spec->mutable_optimizer()->set_rate(0.5);
  (*spec->mutable_optimizer()->mutable_parameters())["momentum"] = 0.9;
  return table;
}

std::vector<Placement> AllHere() {
  Placement here;
  here.ours = true;
  return std::vector<Placement>(kPartitions, here);
}

TEST_CASE("regression: a new table takes no work and no pages before its chunks are used") {
  PageAllocator memory;
  uint64_t resident = 0;
  BufferPool pool(&memory, 4, &resident);
  constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
  const v1::Table spec = NormalTable(v1::DTYPE_F32, uint64_t{64} << 20, kChunkBytes);
  auto table = *DenseTable::Create(spec, kPartitions, &pool);
  REQUIRE(table->Acquire(AllHere()).ok());
  REQUIRE(table->chunks() == 64);
  CHECK(resident == 2 * 64 * kChunkBytes);
  CHECK(memory.touched() == 0);
  // A chunk that is pulled is made, and no other.
  ChunkView view;
  REQUIRE(table->PinToPull(5, 0, &view));
  CHECK(memory.touched() == 1);
  const auto* values = reinterpret_cast<const float*>(view.buffer.data);
  const size_t count = view.bytes / sizeof(float);
  CHECK(std::count(values, values + count, 0.0f) < 10);
  pool.Unpin(view.pin);
}

// A small table whose chunks are used in one way.
struct Small {
  explicit Small(v1::DType dtype) {
    table = *DenseTable::Create(NormalTable(dtype, 100, 64), kPartitions, &pool);
    REQUIRE(table->Acquire(AllHere()).ok());
  }
  std::vector<std::byte> Content() {
    std::vector<std::byte> content(table->ContentBytes());
    table->ReadContent(0, content.data());
    return content;
  }
  HeapAllocator memory;
  uint64_t resident = 0;
  BufferPool pool{&memory, 4, &resident};
  std::unique_ptr<DenseTable> table;
};

TEST_CASE("whatever a chunk is used for first, it has had its initial values") {
  const std::vector<float> ones(16, 1);
  const uint32_t elements = 16;
  const std::vector<std::function<void(DenseTable*, BufferPool*)>> uses = {
      [](DenseTable* t, BufferPool* pool) { pool->Unpin(t->Pin(0).pin); },
      [](DenseTable* t, BufferPool* pool) {
        ChunkView view;
        REQUIRE(t->PinToPull(0, 1, &view));
        pool->Unpin(view.pin);
      },
      [](DenseTable* t, BufferPool*) { t->Digest(0); },
      [&](DenseTable* t, BufferPool*) {
        t->WriteElements(0, 3, {ones.data(), 2}, {}, ElementType::kF32);
      },
      [&](DenseTable* t, BufferPool*) {
        t->WriteState(0, 3, 0, {ones.data(), 2});
      },
      [](DenseTable* t, BufferPool*) { t->Apply(0, {}, 1); },
      [&](DenseTable* t, BufferPool*) {
        const Source source = ones.data();
        t->Apply(0, {&source, 1}, 1);
      },
  };
  for (const v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_BF16}) {
    for (size_t i = 0; i < uses.size(); ++i) {
      INFO(v1::DType_Name(dtype) << ", use " << i);
      Small lazy(dtype);
      Small eager(dtype);
      REQUIRE(lazy.table->chunk(0).elements >= elements);
      eager.table->MakeInitial(0);
      uses[i](lazy.table.get(), &lazy.pool);
      uses[i](eager.table.get(), &eager.pool);
      CHECK(lazy.Content() == eager.Content());
      CHECK(lazy.table->Digest(0) == eager.table->Digest(0));
    }
  }
}

TEST_CASE("content that is written as a whole is not initialised over") {
  Small from(v1::DTYPE_BF16);
  const std::vector<float> ones(4, 1);
  from.table->WriteElements(0, 0, ones, {}, ElementType::kF32);
  const std::vector<std::byte> content = from.Content();
  Small to(v1::DTYPE_BF16);
  to.table->WriteContent(0, content.data());
  CHECK(to.Content() == content);
}

}  // namespace
}  // namespace verbena::shard
