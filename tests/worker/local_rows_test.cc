#include "worker/stores/local_rows.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "worker/stores/local_store.h"
#include "worker/train/random.h"

namespace verbena::worker {
namespace {

constexpr uint32_t kDim = 3;

EmbeddingTable Normal(const char* name) { return {name, kDim, Tensor::Initial::kNormal, 0.5}; }

std::unique_ptr<LocalStore> MakeStore(const std::string& optimizer, uint64_t seed = 1,
                                      double rate = 0.1) {
  const std::vector<EmbeddingTable> tables = {Normal("a"), Normal("b")};
  return *LocalStore::Create(Layout(), {.optimizer = optimizer, .rate = rate, .seed = seed},
                             tables);
}

std::vector<float> Read(LocalStore* store, size_t table, const std::vector<uint64_t>& keys) {
  store->rows()->Lookup(0, table, keys);
  REQUIRE(store->rows()->WaitLookups(0).ok());
  const float* rows = store->rows()->rows(0, table);
  return {rows, rows + keys.size() * kDim};
}

void Push(LocalStore* store, size_t table, const std::vector<uint64_t>& keys,
          const std::vector<float>& gradients) {
  float* out = *store->rows()->Gradients(table, keys.size());
  std::copy(gradients.begin(), gradients.end(), out);
  store->rows()->Push(table, keys);
}

TEST_CASE("an unknown key reads as its initial row, which seed, table and key decide alone") {
  auto one = MakeStore("sgd");
  auto other = MakeStore("sgd");
  const auto rows = Read(one.get(), 0, {5, 900, UINT64_MAX});
  CHECK(Read(other.get(), 0, {900}) == std::vector<float>(rows.begin() + 3, rows.begin() + 6));
  CHECK(one->rows()->size(0) == 0);
  CHECK(Read(MakeStore("sgd", 2).get(), 0, {5, 900, UINT64_MAX}) != rows);
  CHECK(Read(one.get(), 1, {5, 900, UINT64_MAX}) != rows);
  CHECK(rows[0] != rows[3]);
  // The first push starts from it.
  Push(one.get(), 0, {900}, {1, 2, 3});
  one->EndStep();
  const auto after = Read(one.get(), 0, {900});
  for (size_t i = 0; i < kDim; ++i) {
    CHECK(after[i] == Approx(rows[3 + i] - 0.1f * static_cast<float>(i + 1)));
  }
  CHECK(one->rows()->size(0) == 1);
}

TEST_CASE("pushes show when the step ends, duplicates summed") {
  auto store = MakeStore("sgd");
  const auto before = Read(store.get(), 0, {1, 2});
  Push(store.get(), 0, {1, 2, 1}, {1, 1, 1, 5, 5, 5, 2, 2, 2});
  Push(store.get(), 0, {2}, {1, 1, 1});
  CHECK(Read(store.get(), 0, {1, 2}) == before);
  store->EndStep();
  const auto after = Read(store.get(), 0, {1, 2});
  for (size_t i = 0; i < kDim; ++i) {
    CHECK(after[i] == Approx(before[i] - 0.3f));
    CHECK(after[kDim + i] == Approx(before[kDim + i] - 0.6f));
  }
  store->EndStep();
  CHECK(Read(store.get(), 0, {1, 2}) == after);
}

TEST_CASE("a lookup into one slot leaves the others as they are") {
  auto store = MakeStore("sgd");
  const std::vector<uint64_t> first = {1};
  const std::vector<uint64_t> second = {2};
  store->rows()->Lookup(0, 0, first);
  const float was = store->rows()->rows(0, 0)[0];
  store->rows()->Lookup(1, 0, second);
  store->rows()->Lookup(2, 0, second);
  store->rows()->Lookup(0, 1, second);
  CHECK(store->rows()->rows(0, 0)[0] == was);
}

// Each row behaves as a dense tensor that takes a step only when the row is pushed to.
TEST_CASE("random pushes match a map of dense stores") {
  for (const char* optimizer : {"sgd", "momentum", "adam"}) {
    INFO(optimizer);
    auto store = MakeStore(optimizer);
    const Layout row(std::vector<Tensor>{{"row", {kDim}}});
    std::map<uint64_t, std::unique_ptr<LocalStore>> model;
    Random random(3);
    for (int step = 0; step < 200; ++step) {
      std::map<uint64_t, std::vector<float>> sums;
      std::vector<uint64_t> keys;
      std::vector<float> gradients;
      for (uint64_t n = random.Below(6); n > 0; --n) {
        const uint64_t key = random.Below(20) * 0x123456789abcdef1u;
        if (!model.contains(key)) {
          const auto initial = Read(store.get(), 0, {key});
          std::vector<float> arena(row.floats());
          std::copy(initial.begin(), initial.end(), arena.begin());
          model[key] = *LocalStore::Create(row, {.optimizer = optimizer, .rate = 0.1});
          model[key]->Reset(arena.data());
        }
        keys.push_back(key);
        sums[key].resize(kDim);
        for (uint32_t i = 0; i < kDim; ++i) {
          gradients.push_back(static_cast<float>(random.Uniform() - 0.5));
          sums[key][i] += gradients.back();
        }
      }
      Push(store.get(), 0, keys, gradients);
      store->EndStep();
      for (const auto& [key, sum] : sums) {
        std::copy(sum.begin(), sum.end(), model[key]->gradient());
        model[key]->Push(0);
        model[key]->EndStep();
      }
      for (const auto& [key, dense] : model) {
        dense->Pull(0);
        REQUIRE(Read(store.get(), 0, {key}) ==
                std::vector<float>(dense->parameters(), dense->parameters() + kDim));
      }
    }
    CHECK(store->rows()->size(0) == model.size());
  }
}

TEST_CASE("bytes of rows count as pushed and pulled") {
  auto store = MakeStore("sgd");
  Read(store.get(), 0, {1, 2, 3});
  Push(store.get(), 1, {1, 2}, std::vector<float>(6));
  CHECK(store->statistics().bytes_pulled == 3 * kDim * 4);
  CHECK(store->statistics().bytes_pushed == 2 * kDim * 4);
}

}  // namespace
}  // namespace verbena::worker
