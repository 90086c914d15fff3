// A shard's cold rows in RocksDB, and the thread that writes and reads them.
//
// There is no write-ahead log: no process uses the files of an earlier one. The store's own memory
// is about 64 MiB (three buffers and a cache) plus copies of queued data. It is not the shard's: it
// does not count against --memory-limit.
//
// **Thread safety**: ColdStore's methods by the shard's thread, statistics() and health() by any.
// Open(), Start() and Stop() by the thread that starts and ends the server. The store's own thread
// calls `wake` and `log`.
//
// Invariants:
//  1. A failed write is retried, with all writes after it, until it succeeds, its life is
//     forgotten, or Stop(); reads continue meanwhile.
//  2. A failed read is retried for some seconds while others proceed, unless the content is damaged
//     or missing. ReadNow() retries at once.
#ifndef VERBENA_SERVER_COLD_ROCKS_STORE_H_
#define VERBENA_SERVER_COLD_ROCKS_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard/cold_store.h"

namespace rocksdb {
class Env;
}

namespace verbena::server {

struct RocksStoreOptions {
  std::string directory;
  std::string name;  // of the thread, at most 15 characters
  // An operation is done: call TakeDone().
  std::function<void()> wake;
  // Called when writing first fails, when it works again, and for reads that are retried. May be
  // empty.
  std::function<void(const std::string&)> log;
  // Outlives the store; null: of the system. Tests have one whose disk fails.
  rocksdb::Env* env = nullptr;
};

class RocksStore final : public shard::ColdStore {
 public:
  // Written data until they are in files (three buffers), and blocks that were read.
  static constexpr size_t kWriteBufferBytes = size_t{16} << 20;
  static constexpr size_t kCacheBytes = size_t{16} << 20;

  static absl::StatusOr<std::unique_ptr<RocksStore>> Open(const RocksStoreOptions& options);
  ~RocksStore() override;  // stops

  void SetWake(std::function<void()> wake);
  absl::Status Start();
  // Ends the thread; queued operations are dropped. Idempotent.
  void Stop();

  uint32_t NewLife() override;
  void Forget(uint32_t life) override;
  void Write(uint64_t key, uint64_t cookie, absl::Span<const std::byte> content) override;
  void Read(uint64_t key, uint64_t cookie) override;
  bool TakeDone(std::vector<Done>* done) override;
  absl::Status ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to,
                       uint64_t* failed) override;
  absl::Status health() const override;
  shard::ColdStoreStatistics statistics() const override;

 private:
  struct Impl;
  explicit RocksStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COLD_ROCKS_STORE_H_
