#include "server/cold/rocks_store.h"

#include <pthread.h>
#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"

namespace verbena::server {
namespace {

using shard::ColdKey;
using shard::LifeOfColdKey;

// Bytes of one batch: small, so that reads do not wait for many of them.
constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr size_t kReadsAtOnce = 128;
// How long a disk that is full, or did not give a row, is left alone.
constexpr std::chrono::milliseconds kRetry(200);
// Tries for one row before it is given up: five seconds.
constexpr int kReadTries = 25;
// By the shard's thread, for which others wait.
constexpr int kReadNowTries = 3;
// And RocksDB, while it writes files.
constexpr std::chrono::milliseconds kBusy(5);
// Limit of files that were not merged yet: a read checks each of them.
constexpr int kMostYoungFiles = 24;
// 128 GiB of rows without reopening files.
constexpr uint64_t kFileBytes = uint64_t{128} << 20;
constexpr int kOpenFiles = 1024;

// In the order of numbers, so that rows of a life lie side by side.
struct KeyBytes {
  explicit KeyBytes(uint64_t key) {
    if constexpr (std::endian::native == std::endian::little) key = __builtin_bswap64(key);
    std::memcpy(bytes, &key, sizeof(key));
  }
  rocksdb::Slice slice() const { return {bytes, sizeof(bytes)}; }
  char bytes[sizeof(uint64_t)];
};

absl::Status Failed(const std::string& what, const rocksdb::Status& status) {
  const std::string text = absl::StrCat(what, ": ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(text);
  if (status.IsCorruption() || status.IsNotFound()) return absl::DataLossError(text);
  return absl::UnavailableError(text);
}

// The disk may give it another time.
bool MayPass(const rocksdb::Status& status) {
  return !status.ok() && !status.IsCorruption() && !status.IsNotFound();
}

// RocksDB's own log would be a file without readers.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options OptionsOf() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.error_if_exists = true;
  options.info_log = std::make_shared<NoLog>();
  options.compression = rocksdb::kNoCompression;  // numbers
  options.write_buffer_size = RocksStore::kWriteBufferBytes;
  options.max_write_buffer_number = 3;
  options.max_background_jobs = 2;
  options.level_compaction_dynamic_level_bytes = true;
  // Writing continues until it has to stop: Write() does not wait when it is to be slowed down.
  options.level0_slowdown_writes_trigger = kMostYoungFiles;
  options.level0_stop_writes_trigger = kMostYoungFiles;
  options.soft_pending_compaction_bytes_limit = 0;
  options.avoid_flush_during_shutdown = true;
  options.target_file_size_base = kFileBytes;
  options.max_open_files = kOpenFiles;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  rocksdb::BlockBasedTableOptions table;
  // A requested row exists, so the last level needs no filter; above it a filter saves reading a
  // block of each file without the row. Index and filters of many files do not fit the cache as
  // wholes. Rows that are requested repeatedly are in the shard's memory.
  options.optimize_filters_for_hits = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.partition_filters = true;
  table.block_cache = rocksdb::NewLRUCache(RocksStore::kCacheBytes);
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

struct RocksStore::Impl {
  // In the order of the requests.
  struct Asked {
    enum class Kind : uint8_t { kWrite, kRead, kForget } kind;
    uint64_t key;
    uint64_t cookie;
    std::string content;
    int tries = 0;  // of a read
  };

  void Run();
  enum class Written : uint8_t {
    kDone,
    kBusy,    // RocksDB has to write files first
    kFailed,  // not done: again later
  };
  // Drops all rows of that life: files with no other rows are deleted at once, and the rest gets a
  // mark in the next batch.
  void DropLife(uint32_t life);
  Written WriteBatch();
  void ReadSome();
  // Whether the read is retried later; it was put aside for that.
  bool PutAside(Asked* read, const rocksdb::Status& status);
  void Report(std::vector<Done> done);
  void SetHealth(const absl::Status& status);

  RocksStoreOptions options;
  std::unique_ptr<rocksdb::DB> db;
  std::thread thread;
  uint32_t last_life = 0;  // the shard's thread's
  std::atomic<uint64_t> write_failures{0};

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;  // guarded by mutex, as those that follow
  std::vector<Asked> queue;
  std::vector<Done> done;
  absl::Status health;
  std::atomic<bool> has_done{false};

  // The thread's.
  std::deque<Asked> writes;  // taken, not done; forgets, too
  std::deque<Asked> reads;
  std::vector<Asked> aside;  // reads that failed
  std::chrono::steady_clock::time_point aside_until;
  bool reads_fail = false;  // and it was logged
};

RocksStore::RocksStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RocksStore::~RocksStore() { Stop(); }

absl::StatusOr<std::unique_ptr<RocksStore>> RocksStore::Open(const RocksStoreOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  // RocksDB's files are for all to read; its directory is not.
  if (mkdir(options.directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot make the directory for cold rows ", options.directory, ": ", std::strerror(errno)));
  }
  rocksdb::DB* db = nullptr;
  rocksdb::Options settings = OptionsOf();
  if (options.env != nullptr) settings.env = options.env;
  const rocksdb::Status opened = rocksdb::DB::Open(settings, options.directory, &db);
  if (!opened.ok()) {
    return Failed(absl::StrCat("cannot make a database for cold rows in ", options.directory),
                  opened);
  }
  impl->db.reset(db);
  return std::unique_ptr<RocksStore>(new RocksStore(std::move(impl)));
}

void RocksStore::SetWake(std::function<void()> wake) { impl_->options.wake = std::move(wake); }

absl::Status RocksStore::Start() {
  absl::StatusOr<std::thread> started =
      StartThread(impl_->options.name, [impl = impl_.get()] { impl->Run(); });
  if (!started.ok()) return started.status();
  impl_->thread = *std::move(started);
  return absl::OkStatus();
}

void RocksStore::Stop() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->changed.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
}

// ---- the shard's side ---------------------------------------------------------------------------

uint32_t RocksStore::NewLife() { return ++impl_->last_life; }

void RocksStore::Forget(uint32_t life) {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->queue.push_back({Impl::Asked::Kind::kForget, ColdKey(life, 0), 0, {}});
  }
  impl_->changed.notify_one();
}

void RocksStore::Write(uint64_t key, uint64_t cookie, absl::Span<const std::byte> content) {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->queue.push_back({Impl::Asked::Kind::kWrite,
                            key,
                            cookie,
                            {reinterpret_cast<const char*>(content.data()), content.size()}});
  }
  impl_->changed.notify_one();
}

void RocksStore::Read(uint64_t key, uint64_t cookie) {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->queue.push_back({Impl::Asked::Kind::kRead, key, cookie, {}});
  }
  impl_->changed.notify_one();
}

bool RocksStore::TakeDone(std::vector<Done>* done) {
  // A check that comes too early finds nothing, and its caller is woken later; the lock guards the
  // data.
  if (!impl_->has_done.load(std::memory_order_relaxed)) return false;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  // Under the lock, as all stores.
  impl_->has_done.store(false, std::memory_order_relaxed);
  std::move(impl_->done.begin(), impl_->done.end(), std::back_inserter(*done));
  impl_->done.clear();
  return true;
}

absl::Status RocksStore::ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to,
                                 uint64_t* failed) {
  for (size_t from = 0; from < keys.size(); from += kReadsAtOnce) {
    const size_t count = std::min(kReadsAtOnce, keys.size() - from);
    std::vector<KeyBytes> names;
    names.reserve(count);
    std::vector<rocksdb::Slice> slices;
    for (size_t i = 0; i < count; ++i) {
      names.emplace_back(keys[from + i]);
      slices.push_back(names.back().slice());
    }
    std::vector<rocksdb::PinnableSlice> values(count);
    std::vector<rocksdb::Status> statuses(count);
    impl_->db->MultiGet(rocksdb::ReadOptions(), impl_->db->DefaultColumnFamily(), count,
                        slices.data(), values.data(), statuses.data());
    for (size_t i = 0; i < count; ++i, to += bytes) {
      *failed = keys[from + i];
      for (int tries = 1; tries < kReadNowTries && MayPass(statuses[i]); ++tries) {
        values[i].Reset();
        statuses[i] = impl_->db->Get(rocksdb::ReadOptions(), impl_->db->DefaultColumnFamily(),
                                     slices[i], &values[i]);
      }
      if (!statuses[i].ok()) return Failed("cannot read", statuses[i]);
      if (values[i].size() != bytes) {
        return absl::DataLossError(
            absl::StrCat("it has ", values[i].size(), " bytes; wanted: ", bytes));
      }
      std::memcpy(to, values[i].data(), bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status RocksStore::health() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->health;
}

shard::ColdStoreStatistics RocksStore::statistics() const {
  shard::ColdStoreStatistics statistics;
  // A count: nothing goes by it.
  statistics.write_failures = impl_->write_failures.load(std::memory_order_relaxed);
  for (const auto& [name, to] :
       {std::pair{&rocksdb::DB::Properties::kTotalSstFilesSize, &statistics.stored_bytes},
        {&rocksdb::DB::Properties::kCurSizeAllMemTables, &statistics.memory_bytes}}) {
    uint64_t value = 0;
    if (impl_->db->GetIntProperty(*name, &value)) *to = value;
  }
  uint64_t cache = 0;
  if (impl_->db->GetIntProperty(rocksdb::DB::Properties::kBlockCacheUsage, &cache)) {
    statistics.memory_bytes += cache;
  }
  return statistics;
}

// ---- the thread ---------------------------------------------------------------------------------

void RocksStore::Impl::Report(std::vector<Done> more) {
  if (more.empty()) return;
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    first = done.empty();
    std::move(more.begin(), more.end(), std::back_inserter(done));
    // A thread that sees it takes the lock before it reads.
    has_done.store(true, std::memory_order_relaxed);
  }
  if (first && options.wake) options.wake();
}

void RocksStore::Impl::SetHealth(const absl::Status& status) {
  bool told = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    told = health.ok() != status.ok();
    health = status;
  }
  if (!told || !options.log) return;
  options.log(status.ok() ? "cold rows are written again"
                          : absl::StrCat("rows that were changed stay in memory: ",
                                         std::string(status.message())));
}

void RocksStore::Impl::DropLife(uint32_t life) {
  std::erase_if(writes, [&](const Asked& asked) {
    return asked.kind == Asked::Kind::kWrite && LifeOfColdKey(asked.key) == life;
  });
  const auto of_life = [&](const Asked& asked) { return LifeOfColdKey(asked.key) == life; };
  std::erase_if(reads, of_life);
  std::erase_if(aside, of_life);
  const KeyBytes first(ColdKey(life, 0)), behind(ColdKey(life + 1, 0));
  const rocksdb::Slice begin = first.slice(), end = behind.slice();
  // The mark hides rows in files that it cannot remove; they are removed later.
  (void)rocksdb::DeleteFilesInRange(db.get(), db->DefaultColumnFamily(), &begin, &end,
                                    /*include_end=*/false);
}

RocksStore::Impl::Written RocksStore::Impl::WriteBatch() {
  rocksdb::WriteBatch batch;
  size_t end = 0;
  for (size_t bytes = 0; end < writes.size() && bytes < kBatchBytes; ++end) {
    const Asked& asked = writes[end];
    if (asked.kind == Asked::Kind::kForget) {
      batch.DeleteRange(KeyBytes(asked.key).slice(),
                        KeyBytes(ColdKey(LifeOfColdKey(asked.key) + 1, 0)).slice());
    } else {
      batch.Put(KeyBytes(asked.key).slice(), asked.content);
    }
    bytes += asked.content.size() + sizeof(uint64_t);
  }
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  // Waiting for room would keep reads waiting, too.
  unlogged.no_slowdown = true;
  const rocksdb::Status status = db->Write(unlogged, &batch);
  if (!status.ok()) {
    if (status.IsIncomplete()) return Written::kBusy;
    // A count: nothing goes by it.
    write_failures.fetch_add(1, std::memory_order_relaxed);
    SetHealth(Failed("cannot write cold rows", status));
    db->Resume();  // logs the error again if it persists
    return Written::kFailed;
  }
  SetHealth(absl::OkStatus());
  std::vector<Done> finished;
  for (; end > 0; --end, writes.pop_front()) {
    const Asked& asked = writes.front();
    if (asked.kind == Asked::Kind::kWrite)
      finished.push_back({asked.key, asked.cookie, false, {}, {}});
  }
  Report(std::move(finished));
  return Written::kDone;
}

bool RocksStore::Impl::PutAside(Asked* read, const rocksdb::Status& status) {
  if (!MayPass(status) || ++read->tries >= kReadTries) return false;
  if (aside.empty()) aside_until = std::chrono::steady_clock::now() + kRetry;
  if (!reads_fail && options.log) {
    options.log(absl::StrCat("cold rows cannot be read, which is tried again for some seconds: ",
                             status.ToString()));
  }
  reads_fail = true;
  aside.push_back(std::move(*read));
  return true;
}

void RocksStore::Impl::ReadSome() {
  const size_t count = std::min(kReadsAtOnce, reads.size());
  std::vector<KeyBytes> names;
  names.reserve(count);
  std::vector<rocksdb::Slice> slices;
  for (size_t i = 0; i < count; ++i) {
    names.emplace_back(reads[i].key);
    slices.push_back(names.back().slice());
  }
  std::vector<rocksdb::PinnableSlice> values(count);
  std::vector<rocksdb::Status> statuses(count);
  db->MultiGet(rocksdb::ReadOptions(), db->DefaultColumnFamily(), count, slices.data(),
               values.data(), statuses.data());
  std::vector<Done> finished;
  for (size_t i = 0; i < count; ++i) {
    Asked& asked = reads[i];
    if (PutAside(&asked, statuses[i])) continue;
    Done& d = finished.emplace_back();
    d.key = asked.key;
    d.cookie = asked.cookie;
    d.read = true;
    reads_fail = reads_fail && !statuses[i].ok();
    if (!statuses[i].ok()) d.status = Failed("cannot read", statuses[i]);
    const auto* from = reinterpret_cast<const std::byte*>(values[i].data());
    if (d.status.ok()) d.content.assign(from, from + values[i].size());
  }
  reads.erase(reads.begin(), reads.begin() + static_cast<ptrdiff_t>(count));
  Report(std::move(finished));
}

void RocksStore::Impl::Run() {
  pthread_setname_np(pthread_self(), options.name.substr(0, 15).c_str());
  std::vector<Asked> taken;
  bool later = false;  // writes are left alone for a while
  std::chrono::steady_clock::time_point again;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      const auto asked = [&] { return stop || !queue.empty(); };
      if (reads.empty() && (writes.empty() || later)) {
        if (writes.empty() && aside.empty()) {
          changed.wait(lock, asked);
        } else {
          const auto until = aside.empty()    ? again
                             : writes.empty() ? aside_until
                                              : std::min(again, aside_until);
          changed.wait_until(lock, until, asked);
        }
      }
      if (stop) return;
      taken.swap(queue);
    }
    for (Asked& a : taken) {
      if (a.kind == Asked::Kind::kForget) DropLife(LifeOfColdKey(a.key));
      (a.kind == Asked::Kind::kRead ? reads : writes).push_back(std::move(a));
    }
    taken.clear();
    if (!aside.empty() && std::chrono::steady_clock::now() >= aside_until) {
      std::move(aside.begin(), aside.end(), std::back_inserter(reads));
      aside.clear();
    }
    // Reads first: requests wait for them. Writes are ahead of need.
    if (!reads.empty()) ReadSome();
    const auto now = std::chrono::steady_clock::now();
    if (writes.empty() || (later && now < again)) continue;
    const Written written_now = WriteBatch();
    later = written_now != Written::kDone;
    again = now + (written_now == Written::kFailed ? kRetry : kBusy);
  }
}

}  // namespace verbena::server
