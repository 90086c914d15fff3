#include "client/hub.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/threads.h"

namespace verbena {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kMillisecond = 1'000'000;
// About what waking a thread costs: sleeping earlier than that saves nothing.
constexpr int64_t kSpinNanos = 50'000;
constexpr int kFruitlessSpins = 3;
constexpr int64_t kNap = 2 * kMillisecond;
constexpr int64_t kLongestNap = 64 * kMillisecond;
// After so many looks that found nothing left to the background thread naps become longer.
constexpr int kCalmLooks = 64;
constexpr int64_t kCalmNap = 16 * kMillisecond;
// Progress::kCaller: how often the lease is looked at when nobody waits.
constexpr int64_t kKeepLease = 100 * kMillisecond;
constexpr int64_t kReleaseWait = 1000 * kMillisecond;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Signal(int fd) {
  const uint64_t one = 1;
  // Fails only when the counter is full: then the sleeper is being woken already.
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
}

void Drain(int fd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(fd, &count, sizeof(count));
}

}  // namespace

class Hub::Lock {
 public:
  explicit Lock(Hub* hub) : lock_(hub->mutex_, std::defer_lock) {
    hub->contenders_.fetch_add(1, std::memory_order_relaxed);
    lock_.lock();
    hub->contenders_.fetch_sub(1, std::memory_order_relaxed);
    ++hub->entries_;
    if (hub->letting_in_ > 0) hub->entered_.notify_all();
  }
  std::unique_lock<std::mutex>& get() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

Hub::Hub(bool background) : background_(background) {}

Hub::~Hub() {
  if (thread_.joinable() || keeper_thread_.joinable()) Stop(0);
  if (caller_fd_ >= 0) close(caller_fd_);
  if (background_fd_ >= 0) close(background_fd_);
}

absl::Status Hub::Start(Parts parts) {
  parts_ = std::move(parts);
  caller_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  background_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (caller_fd_ < 0 || background_fd_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  client::Registrar& registrar = parts_.core->registrar();
  absl::Status threaded = registrar.UseThread([this, &registrar] {
    auto started = StartThread("of the registrar", [&registrar] { registrar.Run(); });
    if (started.ok()) registrar_threads_.push_back(*std::move(started));
    return started.status();
  });
  if (!threaded.ok()) return threaded;
  client::LeaseKeeper& keeper = parts_.core->lease_keeper();
  if (keeper.usable()) {
    auto started = StartThread("of the lease", [this, &keeper] { KeepLeaseAlone(&keeper); });
    if (!started.ok()) return started.status();
    keeper_thread_ = *std::move(started);
  }
  auto started = StartThread("of the client", [this] { Background(); });
  if (!started.ok()) return started.status();
  thread_ = *std::move(started);
  return absl::OkStatus();
}

absl::Status Hub::WhyNot() const {
  if (absl::Status status = process_.Check("the client"); !status.ok()) return status;
  return absl::FailedPreconditionError("the client is closed");
}

void Hub::Stop(int64_t leave_by_ns) {
  if (copied()) return;
  bool left = false;
  Run([&](client::ClientCore& core) {
    core.Leave(leave_by_ns, [&left](absl::Status) { left = true; });
  });
  // The call itself ends by its deadline; a moment more for its end to be noticed.
  WaitUntil([&] { return left; }, leave_by_ns + 10 * kMillisecond);
  {
    Lock lock(this);
    // Ends what is left, so that every ticket is done.
    if (parts_.core != nullptr) parts_.core->RunOnce();
    RunCallbacks(lock.get());
    stopping_ = true;
    // A caller that still drives sees it and lets go of the core.
    if (sleeper_fd_ >= 0) Signal(sleeper_fd_);
    if (waiting_ > 0) changed_.notify_all();
    ++waiting_;
    changed_.wait(lock.get(), [this] { return !caller_drives_; });
    --waiting_;
  }
  Signal(background_fd_);
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard<std::mutex> keeper(keeper_mutex_);
    keeper_stops_ = true;
  }
  keeper_changed_.notify_all();
  if (keeper_thread_.joinable()) keeper_thread_.join();
  StopRegistrar();
  Lock lock(this);
  parts_.core.reset();
  parts_.endpoints.clear();
  parts_.control.reset();
}

// Waits for the piece of memory that is being registered, without the lock.
void Hub::StopRegistrar() {
  {
    Lock lock(this);
    if (parts_.core == nullptr) return;
    parts_.core->registrar().Stop();  // no call after this one starts a thread
  }
  for (std::thread& thread : registrar_threads_) thread.join();
  registrar_threads_.clear();
}

bool Hub::Run(absl::FunctionRef<void(client::ClientCore&)> call) {
  if (copied()) return false;
  Lock lock(this);
  if (parts_.core == nullptr) return false;
  call(*parts_.core);
  WakeSleeper();
  return true;
}

// Somebody changed the core's timers, or what is due at once: the thread asleep must know.
void Hub::WakeSleeper() {
  if (sleeper_fd_ >= 0 && parts_.core->NextTimerNanos() < sleeps_until_) Signal(sleeper_fd_);
}

void Hub::ReleaseBlock(const rdma::MemoryBlock& block) {
  bool in_use = false;
  Run([&](client::ClientCore& core) {
    core.ReleaseBlock(block.id());
    in_use = core.InUse(block.id());
  });
  // Allocated memory lives until the last lane lets go of it. A caller's own may be gone when this
  // returns, so lanes get a moment to die; only a stopped shm peer needs longer, and nothing reads
  // or writes on its behalf after Close().
  if (!in_use || block.allocated()) return;
  WaitUntil([&] { return parts_.core == nullptr || !parts_.core->InUse(block.id()); },
            Now() + kReleaseWait);
}

// ---- callers ------------------------------------------------------------------------------------

bool Hub::WaitUntil(absl::FunctionRef<bool()> done, int64_t deadline_ns) {
  if (copied()) return false;
  Lock guard(this);
  std::unique_lock<std::mutex>& lock = guard.get();
  bool waited = false;
  while (parts_.core != nullptr && !stopping_) {
    const bool is_done = done();
    const int64_t now = is_done ? 0 : Now();
    if (is_done || now >= deadline_ns) {
      // The caller that stopped driving left the rest to this one.
      if (waited && !caller_drives_ && waiting_ == 0) WakeFromNap();
      return is_done;
    }
    if (!caller_drives_) {
      Drive(lock, done, deadline_ns);
      continue;
    }
    ++waiting_;
    // Capped: the standard library's sum of now and a huge duration overflows.
    const int64_t wait = std::min<int64_t>(deadline_ns - now, int64_t{3600} * 1'000'000'000);
    changed_.wait_for(lock, std::chrono::nanoseconds(wait));
    --waiting_;
    waited = true;
  }
  return done();
}

// Takes the core from the background thread, if that sleeps on it.
void Hub::TakeOver() {
  caller_drives_ = true;
  ++drives_;
  if (sleeper_fd_ < 0) return;
  parts_.core->Disarm();
  Signal(sleeper_fd_);
  sleeper_fd_ = -1;
}

void Hub::HandOver() {
  caller_drives_ = false;
  if (waiting_ > 0) {
    changed_.notify_all();  // one of them drives on, or wakes the background thread
    return;
  }
  WakeFromNap();
}

void Hub::LetIn(std::unique_lock<std::mutex>& lock) {
  // Relaxed: one that is missed waits for one more turn. Who is counted waits for nothing but the
  // lock.
  const int waiting = contenders_.load(std::memory_order_relaxed);
  if (waiting == 0) return;
  const uint64_t all = entries_ + static_cast<uint64_t>(waiting);
  ++letting_in_;
  entered_.wait(lock, [&] { return entries_ >= all; });
  --letting_in_;
}

void Hub::WakeFromNap() {
  if (parts_.core->HasOperations()) calm_looks_ = 0;
  if (naps_until_ == 0) return;
  if ((background_ && expected_callbacks_ > 0) ||
      (calm_looks_ < kCalmLooks && naps_until_ - Now() > kNap)) {
    Signal(background_fd_);
  }
}

void Hub::ExpectCallback() {
  ++expected_callbacks_;
  if (background_ && !caller_drives_ && naps_until_ != 0) Signal(background_fd_);
}

void Hub::Drive(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done,
                int64_t deadline_ns) {
  TakeOver();
  while (true) {
    const bool worked = parts_.core->RunOnce();
    if (worked && waiting_ > 0) changed_.notify_all();
    if (!callbacks_.empty() && !RunCallbacks(lock)) return;
    // The clock is read only when there is nothing else to do: it costs as much as a poll.
    if (done() || stopping_ || (!worked && Now() >= deadline_ns)) break;
    if (parts_.core->long_turn()) {
      LetIn(lock);
    } else if (contenders_.load(std::memory_order_relaxed) > 0) {
      lock.unlock();
      sched_yield();
      lock.lock();
    }
    if (worked || Spin(lock, done)) continue;
    const int64_t slept_at = Now();
    Sleep(lock, caller_fd_, std::min(deadline_ns, parts_.core->NextTimerNanos()));
    // What came that soon would have been seen spinning.
    if (Now() - slept_at < kSpinNanos) fruitless_spins_ = 0;
  }
  HandOver();
}

// True: something happened.
bool Hub::Spin(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done) {
  if (fruitless_spins_ >= kFruitlessSpins) return false;
  int64_t start = 0;
  for (int i = 1;; ++i) {
    Pause();
    // Timers and control answers can wait for the sixteenth turn; a peer's answer cannot.
    if (parts_.core->Poll() || i % 16 == 0) {
      if (parts_.core->RunOnce() || done()) {
        if (waiting_ > 0) changed_.notify_all();
        break;
      }
    }
    if (contenders_.load(std::memory_order_relaxed) > 0 || i % 64 == 0) {
      lock.unlock();
      sched_yield();
      lock.lock();
    }
    if (i % 16 == 0) {
      const int64_t now = Now();
      if (start == 0) start = now;
      if (now - start >= kSpinNanos) {
        ++fruitless_spins_;
        return false;
      }
    }
  }
  fruitless_spins_ = 0;
  return true;
}

void Hub::Sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int64_t until_ns) {
  // A stop may have come while the lock was let go of: it wakes who sleeps, not who is about to.
  if (stopping_) return;
  if (!parts_.core->Arm()) return;  // something to poll
  descriptors_.clear();
  parts_.core->AppendDescriptors(&descriptors_);
  polled_.clear();
  polled_.push_back({wake_fd, POLLIN, 0});
  for (const int fd : descriptors_) polled_.push_back({fd, POLLIN, 0});
  sleeper_fd_ = wake_fd;
  sleeps_until_ = until_ns;
  timespec timeout = {};
  timespec* limit = nullptr;
  if (until_ns != kNever) {
    const int64_t left = std::max<int64_t>(until_ns - Now(), 0);
    timeout.tv_sec = left / 1'000'000'000;
    timeout.tv_nsec = left % 1'000'000'000;
    limit = &timeout;
  }
  // A caller that takes over fills polled_ anew while this thread is still in ppoll().
  std::vector<pollfd> polled;
  polled.swap(polled_);
  lock.unlock();
  ppoll(polled.data(), polled.size(), limit, nullptr);
  lock.lock();
  if (polled[0].revents != 0) Drain(wake_fd);
  polled_.swap(polled);
  if (sleeper_fd_ != wake_fd) return;  // a caller took over
  sleeper_fd_ = -1;
  parts_.core->Disarm();
}

// Callbacks may start operations and even wait, so for their time nobody drives. False: another
// thread does now.
bool Hub::RunCallbacks(std::unique_lock<std::mutex>& lock) {
  const bool drove = std::exchange(caller_drives_, false);
  if (waiting_ > 0) changed_.notify_all();
  while (!callbacks_.empty()) {
    auto [callback, status] = std::move(callbacks_.back());
    callbacks_.pop_back();
    lock.unlock();
    callback(std::move(status));
    callback = nullptr;
    lock.lock();
  }
  if (!drove) return true;
  if (caller_drives_ || stopping_ || parts_.core == nullptr) return false;
  TakeOver();
  return true;
}

// ---- the background thread ----------------------------------------------------------------------

void Hub::Nap(std::unique_lock<std::mutex>& lock, int64_t ns) {
  naps_until_ = Now() + ns;
  lock.unlock();
  pollfd wake = {background_fd_, POLLIN, 0};
  const timespec timeout = {static_cast<time_t>(ns / 1'000'000'000), ns % 1'000'000'000};
  ppoll(&wake, 1, &timeout, nullptr);
  if (wake.revents != 0) Drain(background_fd_);
  lock.lock();
  naps_until_ = 0;
}

void Hub::Background() {
  Lock guard(this);
  std::unique_lock<std::mutex>& lock = guard.get();
  int64_t nap = kNap;
  uint64_t drives = 0;
  while (!stopping_) {
    LetIn(lock);
    if (!background_) {
      if (!caller_drives_) KeepLease();
      Nap(lock, kKeepLease);
      continue;
    }
    if (caller_drives_ || (drives_ != drives && expected_callbacks_ == 0)) {
      nap = NextNap(nap, drives_ == drives);
      drives = drives_;
      Nap(lock, nap);
      continue;
    }
    // That was left to this thread; or its caller is about to wait, and has no processor just now.
    if (parts_.core->HasOperations()) calm_looks_ /= 2;
    BackgroundTurn(lock);
  }
}

int64_t Hub::NextNap(int64_t last, bool keeps) {
  calm_looks_ = std::min(calm_looks_ + 1, kCalmLooks);
  if (calm_looks_ == kCalmLooks) return std::min(2 * last, kCalmNap);
  return keeps ? std::min(2 * last, kLongestNap) : kNap;
}

void Hub::BackgroundTurn(std::unique_lock<std::mutex>& lock) {
  const bool worked = parts_.core->RunOnce();
  if (worked && waiting_ > 0) changed_.notify_all();
  if (!callbacks_.empty()) {
    RunCallbacks(lock);
    return;
  }
  if (worked || caller_drives_ || stopping_) return;
  Sleep(lock, background_fd_, parts_.core->NextTimerNanos());
}

void Hub::KeepLeaseAlone(client::LeaseKeeper* keeper) {
  std::unique_lock<std::mutex> lock(keeper_mutex_);
  while (!keeper_stops_) {
    lock.unlock();
    const int64_t next = keeper->RunOnce(Now());
    lock.lock();
    keeper_changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(next - Now(), 0)),
                             [this] { return keeper_stops_; });
  }
}

void Hub::KeepLease() {
  while (parts_.core->RunControl()) {
  }
}

}  // namespace verbena
