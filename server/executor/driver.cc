#include "server/executor/driver.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"

namespace verbena::server {
namespace {

constexpr int kFruitlessLimit = 3;
constexpr int kPausesPerYield = 64;
constexpr int kPausesPerLook = 4;
// A yield that takes this long has run another thread: the core is wanted.
constexpr int64_t kContendedYieldNs = 10'000;
constexpr int64_t kLongestSleepNs = 10'000'000'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield" ::: "memory");
#endif
}

// How many processors this thread may run on.
int MayUseCpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void MoveOffCpu(int cpu) {
  cpu_set_t set;
  if (cpu < 0 || sched_getaffinity(0, sizeof(set), &set) != 0) return;
  CPU_CLR(static_cast<size_t>(cpu), &set);
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

Driver::Driver(DriverOptions options, const Clock* clock, Machine* machine)
    : options_(std::move(options)), clock_(clock), machine_(machine) {}

Driver::~Driver() {
  Stop();
  if (stop_fd_ >= 0) close(stop_fd_);
}

absl::Status Driver::Start() {
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("eventfd for thread ", options_.name, ": ", std::strerror(errno)));
  }
  absl::StatusOr<std::thread> started = StartThread(options_.name, [this] { Run(); });
  if (!started.ok()) return started.status();
  thread_ = *std::move(started);
  if (options_.cpu >= 0) Bind();
  return absl::OkStatus();
}

void Driver::Bind() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(options_.cpu), &set);
  const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof(set), &set);
  if (error == 0) return;
  binding_ =
      absl::UnavailableError(absl::StrCat("thread ", options_.name, " is not bound to processor ",
                                          options_.cpu, ": ", std::strerror(error)));
}

void Driver::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  thread_.join();
}

double Driver::ThreadCpuSeconds() const {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double Driver::cpu_seconds() const {
  if (!thread_.joinable()) return final_cpu_seconds_.load(std::memory_order_relaxed);
  clockid_t id;
  timespec t = {};
  // const_cast: native_handle() is not const, and nothing is changed through it.
  const pthread_t handle = const_cast<std::thread&>(thread_).native_handle();
  if (pthread_getcpuclockid(handle, &id) != 0 || clock_gettime(id, &t) != 0) {
    return final_cpu_seconds_.load(std::memory_order_relaxed);
  }
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void Driver::Run() {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  while (!stop_.load(std::memory_order_acquire)) {
    if (machine_->RunOnce()) continue;
    if (Spin()) continue;
    Sleep();
  }
  final_cpu_seconds_.store(ThreadCpuSeconds(), std::memory_order_relaxed);
}

bool Driver::Spin() {
  if (options_.spin <= absl::ZeroDuration() || fruitless_ >= kFruitlessLimit) return false;
  counters_.spins.fetch_add(1, std::memory_order_relaxed);
  const int64_t end = clock_->NowNanos() + absl::ToInt64Nanoseconds(options_.spin);
  int64_t now = 0;
  do {
    for (int i = 0; i < kPausesPerYield; ++i) {
      Pause();
      if ((i + 1) % kPausesPerLook == 0 && machine_->RunOnce()) {
        fruitless_ = 0;
        return true;
      }
    }
    const int64_t before = clock_->NowNanos();
    sched_yield();
    now = clock_->NowNanos();
    if (now - before > kContendedYieldNs) {
      if (machine_->RunOnce()) {
        fruitless_ = 0;
        return true;
      }
      // Another thread needs the core, perhaps the very peer whose record is awaited.
      break;
    }
  } while (now < end && !stop_.load(std::memory_order_relaxed));
  ++fruitless_;
  counters_.fruitless_spins.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void Driver::Sleep() {
  if (!machine_->Arm()) return;
  fds_.clear();
  machine_->AppendDescriptors(&fds_);
  fds_.push_back(stop_fd_);
  // pollfd on the stack for the usual few; a vector would do as well but this never allocates.
  std::array<pollfd, 64> few;
  std::vector<pollfd> many;
  pollfd* polls = few.data();
  if (fds_.size() > few.size()) {
    many.resize(fds_.size());
    polls = many.data();
  }
  for (size_t i = 0; i < fds_.size(); ++i) polls[i] = {fds_[i], POLLIN, 0};
  const int64_t start = clock_->NowNanos();
  const int64_t due = machine_->NextTimerNanos();
  const int64_t wait = due == std::numeric_limits<int64_t>::max()
                           ? kLongestSleepNs
                           : std::clamp<int64_t>(due - start, 0, kLongestSleepNs);
  const timespec timeout = {wait / 1'000'000'000, wait % 1'000'000'000};
  const int ready = ppoll(polls, fds_.size(), &timeout, nullptr);
  machine_->Disarm();
  counters_.sleeps.fetch_add(1, std::memory_order_relaxed);
  // Woken by something sooner than a spin would have ended: spinning pays again.
  if (ready > 0 && fruitless_ > 0 &&
      clock_->NowNanos() - start < absl::ToInt64Nanoseconds(options_.spin)) {
    fruitless_ = 0;
  }
}

absl::Duration MeasureWakeUpCost() {
  constexpr int kRounds = 33;
  constexpr absl::Duration kLeast = absl::Microseconds(5), kMost = absl::Microseconds(100);
  const int ping = eventfd(0, EFD_CLOEXEC);
  const int pong = eventfd(0, EFD_CLOEXEC);
  absl::Duration cost = absl::Microseconds(50);
  if (ping >= 0 && pong >= 0 && MayUseCpus() > 1) {
    try {
      uint64_t value = 1;
      // Across cores, as a peer pays it: on one core a wake-up costs a twentieth.
      const int here = sched_getcpu();
      std::thread peer([&] {
        MoveOffCpu(here);
        uint64_t got = 0;
        for (int i = 0; i < kRounds; ++i) {
          if (read(ping, &got, sizeof(got)) < 0 || write(pong, &got, sizeof(got)) < 0) return;
        }
      });
      std::array<int64_t, kRounds> round_trips = {};
      const MonotonicClock clock;
      for (int64_t& round_trip : round_trips) {
        const int64_t start = clock.NowNanos();
        if (write(ping, &value, sizeof(value)) < 0 || read(pong, &value, sizeof(value)) < 0) break;
        round_trip = clock.NowNanos() - start;
      }
      peer.join();
      std::nth_element(round_trips.begin(), round_trips.begin() + kRounds / 2, round_trips.end());
      cost = absl::Nanoseconds(round_trips[kRounds / 2] / 2);
    } catch (const std::system_error&) {
      // No thread to measure with: the usual cost stands.
    }
  }
  if (ping >= 0) close(ping);
  if (pong >= 0) close(pong);
  return std::clamp(cost, kLeast, kMost);
}

}  // namespace verbena::server
