// State of the handles of client.h and of a client; private to client/.
//
// **Thread safety**: that of client.h; the runtime's lock guards the state.
#ifndef VERBENA_CLIENT_CLIENT_IMPL_H_
#define VERBENA_CLIENT_CLIENT_IMPL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client_runtime.h"
#include "client/core/client_core.h"
#include "proto/base/fork_guard.h"
#include "proto/wire/routing.h"
#include "verbena/client.h"

namespace verbena {

// A deadline `timeout` from now, without overflow.
inline int64_t After(int64_t now, absl::Duration timeout) {
  const int64_t ns = std::max<int64_t>(absl::ToInt64Nanoseconds(timeout), 0);
  return ns > INT64_MAX - now ? INT64_MAX : now + ns;
}

struct __attribute__((visibility("hidden"))) Region::State {
  std::shared_ptr<ClientRuntime> runtime;
  std::shared_ptr<rdma::MemoryBlock> block;
  ~State() {
    if (runtime->copied()) {
      // Registrations and locks of the block belong to the parent: a forked child keeps it to its
      // end.
      KeepInCopy(new std::shared_ptr<rdma::MemoryBlock>(std::move(block)));
    } else {
      runtime->ReleaseBlock(*block);
    }
  }
};

// A table handle may outlive its client and keeps none of its objects alive. It refers to the
// client by an id that is never reused in this process. An address may belong to another client by
// now, of another cluster, where the table's id belongs to another table.
struct __attribute__((visibility("hidden"))) Table::State {
  uint64_t client;
  v1::Table info;
  DenseLayout layout;
};

// Guarded by the runtime's lock, except `done` and `started_ns`.
struct __attribute__((visibility("hidden"))) Ticket::State {
  std::shared_ptr<ClientRuntime> runtime;
  std::shared_ptr<State> self;  // while the core has its address
  client::OperationId id = 0;
  bool started = false;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  std::atomic<bool> done{false};
  absl::Status status;
  std::function<void(absl::Status)> callback;

  // In a forked child, an operation that ran at the fork counts as ended.
  bool Over() const { return done.load(std::memory_order_acquire) || runtime->copied(); }
  // The status of an ended operation.
  absl::Status Result() const {
    return done.load(std::memory_order_acquire) ? status : runtime->WhyNot();
  }
  // Requires the lock.
  void Finish(absl::Status result) {
    status = std::move(result);
    if (callback) {
      runtime->EndExpectCallback();
      runtime->AddCallback(std::move(callback), status);
    }
    callback = nullptr;
    ended_ns = runtime->Now();
    done.store(true, std::memory_order_release);
  }
};

// Keeps memory of ticket states for reuse, so that an operation does not allocate. In a forked
// child it takes no lock and keeps no memory.
class StatePool {
 public:
  ~StatePool() {
    for (void* p : free_) ::operator delete(p);
  }
  void* Get(size_t bytes) {
    if (!process_.copied()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        void* p = free_.back();
        free_.pop_back();
        return p;
      }
    }
    return ::operator new(bytes);
  }
  void Put(void* p) {
    if (process_.copied()) return ::operator delete(p);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(p);
  }

 private:
  const ForkGuard process_;
  std::mutex mutex_;
  std::vector<void*> free_;
};

// Provides blocks of one size: used for allocate_shared of one type only.
template <typename T>
struct PoolAllocator {
  using value_type = T;
  explicit PoolAllocator(std::shared_ptr<StatePool> p) : pool(std::move(p)) {}
  template <typename U>
  PoolAllocator(const PoolAllocator<U>& other) : pool(other.pool) {}  // NOLINT: allocator rebind
  T* allocate(size_t n) { return static_cast<T*>(pool->Get(n * sizeof(T))); }
  void deallocate(T* p, size_t) { pool->Put(p); }
  bool operator==(const PoolAllocator& other) const { return pool == other.pool; }
  std::shared_ptr<StatePool> pool;
};

// Hidden: a class nested in an exported class would be exported too.
struct __attribute__((visibility("hidden"))) Client::Impl {
  static uint64_t NextId() {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only uniqueness is needed
  }

  const uint64_t client_id = NextId();
  ClientOptions options;
  std::vector<std::string> missing_transports;
  std::once_flag closed;
  std::shared_ptr<ClientRuntime> runtime;
  std::shared_ptr<StatePool> tickets = MakeSharedOfProcess<StatePool>();

  int64_t Deadline(const std::optional<absl::Duration>& timeout) const {
    return After(runtime->Now(), timeout.value_or(options.timeout));
  }
  std::shared_ptr<Ticket::State> NewTicket() {
    auto state = std::allocate_shared<Ticket::State>(PoolAllocator<Ticket::State>(tickets));
    state->runtime = runtime;
    state->started_ns = runtime->Now();
    return state;
  }
  // Starts an operation with `start(core, done)`.
  template <typename F>
  std::shared_ptr<Ticket::State> Launch(F start);
  absl::Status CheckOpen() const;
  absl::Status CheckTable(const Table& table) const;
  absl::Status CheckHandles(const Table& table, const Region& region, const char* role) const;
  absl::StatusOr<client::ClientCore::Slice> SliceOf(const Table& table, const Region& region,
                                                    const Range& range, const char* role,
                                                    void* stream) const;
  // The array's number in records. INVALID_ARGUMENT: the table has no such array.
  absl::StatusOr<uint8_t> ArrayOf(const char* call, const Table& table,
                                  std::string_view array) const;
  // Encodes the gradient of such a call on this thread, without the lock. Null: the table has no
  // push codec.
  absl::StatusOr<std::unique_ptr<client::PushEncoding>> Encode(std::string_view call,
                                                               const Table& table,
                                                               const Region& gradient,
                                                               const Range& range);
  // Sorts many keys of such a call on this thread, without the lock. Null: the call sorts or
  // refuses them.
  std::unique_ptr<client::KeySort> SortKeys(const Table& table, absl::Span<const uint64_t> keys);
  // Runs a control call and waits for its reply.
  template <typename Result, typename F>
  Result Wait(F start);
};

template <typename F>
std::shared_ptr<Ticket::State> Client::Impl::Launch(F start) {
  std::shared_ptr<Ticket::State> state = NewTicket();
  const bool open = runtime->Run([&](client::ClientCore& core) {
    Ticket::State* raw = state.get();
    // A bare pointer fits std::function without an allocation; `self` keeps it alive.
    absl::StatusOr<client::OperationId> id = start(core, [raw](absl::Status status) {
      const std::shared_ptr<Ticket::State> last = std::move(raw->self);
      raw->Finish(std::move(status));
    });
    if (!id.ok()) return raw->Finish(id.status());
    raw->id = *id;
    raw->started = true;
    raw->self = state;
  });
  // No other thread has the state yet.
  if (!open) state->Finish(runtime->WhyNot());
  return state;
}

template <typename Result, typename F>
Result Client::Impl::Wait(F start) {
  struct Answer {
    bool done = false;
    std::optional<Result> result;
  };
  auto answer = std::make_shared<Answer>();
  runtime->Run([&](client::ClientCore& core) {
    start(core, [answer](Result result) {
      answer->result.emplace(std::move(result));
      answer->done = true;
    });
  });
  runtime->WaitUntil([&] { return answer->done; }, INT64_MAX);
  if (answer->result.has_value()) return *std::move(answer->result);
  return Result(runtime->WhyNot());
}

}  // namespace verbena

#endif  // VERBENA_CLIENT_CLIENT_IMPL_H_
