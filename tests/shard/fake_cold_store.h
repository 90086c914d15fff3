// A cold store in memory that takes its time: requests are done later, reads in any order, writes
// in order; and it fails when a test orders it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_FAKE_COLD_STORE_H_
#define VERBENA_TESTS_SHARD_FAKE_COLD_STORE_H_

#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "shard/cold_store.h"

namespace verbena::shard {

class FakeColdStore final : public ColdStore {
 public:
  explicit FakeColdStore(uint32_t seed) : random_(seed) {}

  uint32_t NewLife() override { return ++last_life_; }
  void Forget(uint32_t life) override {
    rows_.erase(rows_.lower_bound(ColdKey(life, 0)), rows_.lower_bound(ColdKey(life + 1, 0)));
    const auto of = [&](const auto& asked) { return LifeOfColdKey(asked.key) == life; };
    std::erase_if(writes_, of);
    std::erase_if(reads_, of);
  }
  void Write(uint64_t key, uint64_t cookie, absl::Span<const std::byte> content) override {
    writes_.push_back({key, cookie, {content.begin(), content.end()}});
  }
  void Read(uint64_t key, uint64_t cookie) override {
    // Its content was written before: a row that is not in memory must be in the store.
    if (!rows_.contains(key)) ++misses;
    reads_.push_back({key, cookie, {}});
  }
  // Completes some of the requests; all of them, when it is not slow.
  bool TakeDone(std::vector<Done>* done) override {
    if (stopped) return false;
    const size_t before = done->size();
    const size_t asked = writes_.size() + reads_.size();
    for (size_t n = slow ? random_() % (asked + 1) : asked; n > 0; --n) {
      const bool write = reads_.empty() || (!writes_.empty() && random_() % 2 == 0);
      if (write && (writes_.empty() || full)) continue;
      if (write) {
        Asked w = std::move(writes_.front());
        writes_.pop_front();
        rows_[w.key] = std::move(w.content);
        done->push_back({w.key, w.cookie, false, absl::OkStatus(), {}});
      } else {
        std::swap(reads_[random_() % reads_.size()], reads_.back());
        const Asked r = std::move(reads_.back());
        reads_.pop_back();
        done->push_back({r.key, r.cookie, true, status(), rows_[r.key]});
      }
    }
    return done->size() > before;
  }
  absl::Status ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to,
                       uint64_t* failed) override {
    for (const uint64_t key : keys) {
      *failed = key;
      if (absl::Status s = status(); !s.ok()) return s;
      const auto row = rows_.find(key);
      if (row == rows_.end() || row->second.size() != bytes) ++misses;
      if (row != rows_.end()) std::memcpy(to, row->second.data(), bytes);
      to += bytes;
    }
    return absl::OkStatus();
  }
  absl::Status health() const override {
    return full ? absl::ResourceExhaustedError("the disk is full") : absl::OkStatus();
  }
  ColdStoreStatistics statistics() const override { return {0, rows_.size(), 0}; }

  bool idle() const { return reads_.empty() && (full || writes_.empty()); }
  size_t rows() const { return rows_.size(); }
  size_t queued() const { return reads_.size() + writes_.size(); }
  size_t queued_writes() const { return writes_.size(); }
  size_t queued_reads() const { return reads_.size(); }

  bool slow = true;
  bool stopped = false;   // nothing is done
  bool full = false;      // nothing is written
  bool lose_all = false;  // no row can be read
  uint64_t misses = 0;    // rows that were asked for and never written

 private:
  struct Asked {
    uint64_t key, cookie;
    std::vector<std::byte> content;
  };
  absl::Status status() const {
    return lose_all ? absl::DataLossError("block checksum mismatch") : absl::OkStatus();
  }

  std::mt19937 random_;
  uint32_t last_life_ = 0;
  std::map<uint64_t, std::vector<std::byte>> rows_;
  std::deque<Asked> writes_;
  std::vector<Asked> reads_;
};

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_FAKE_COLD_STORE_H_
