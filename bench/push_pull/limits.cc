#include "bench/push_pull/limits.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "bench/cluster.h"
#include "bench/push_pull/touch.h"
#include "shard/kernel/prefetch.h"

#if defined(__x86_64__)
#include <immintrin.h>
// The best code each machine can run, chosen when the program is loaded.
#define VERBENA_BEST_TARGET __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VERBENA_BEST_TARGET
#endif

namespace verbena::bench {
namespace {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Anonymous memory in huge pages: the best there is for two threads of one process.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    void* memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes_, MADV_HUGEPAGE);
    std::memset(memory, 0, bytes_);
    data_ = static_cast<float*>(memory);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return data_; }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  size_t bytes_;
  float* data_;
};

VERBENA_BEST_TARGET void Sum(float* __restrict parameters, const float* __restrict gradient,
                             size_t count) {
  for (size_t i = 0; i < count; ++i) parameters[i] += gradient[i];
}

VERBENA_BEST_TARGET void SumOut(float* __restrict parameters, const float* __restrict gradient,
                                float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float sum = parameters[i] + gradient[i];
    parameters[i] = sum;
    out[i] = sum;
  }
}

VERBENA_BEST_TARGET void SumOutPrefetch(float* __restrict parameters,
                                        const float* __restrict gradient, float* __restrict out,
                                        size_t count) {
  constexpr size_t kBlock = 256;  // 1 KiB at a time, the next 2 KiB asked for
  for (size_t at = 0; at < count; at += kBlock) {
    for (size_t line = 0; line < kBlock; line += 16) {
      shard::PrefetchToRead(gradient + at + 2 * kBlock + line);
      shard::PrefetchToWrite(out + at + 2 * kBlock + line);
    }
    const size_t end = std::min(count, at + kBlock);
    for (size_t i = at; i < end; ++i) {
      const float sum = parameters[i] + gradient[i];
      parameters[i] = sum;
      out[i] = sum;
    }
  }
}

void CopyStreaming(float* target, const float* source, size_t count) {
#if defined(__x86_64__)
  for (size_t i = 0; i < count; i += 4) _mm_stream_ps(target + i, _mm_loadu_ps(source + i));
  _mm_sfence();
#else
  std::memcpy(target, source, count * sizeof(float));
#endif
}

struct alignas(128) Line {
  std::atomic<uint32_t> sequence{0};
  float payload[15] = {};
};

// One run's buffers, shared by the two threads.
struct Shared {
  explicit Shared(size_t bytes) : count(bytes / sizeof(float)), parameters(bytes) {
    for (auto* set : {&gradient, &result, &slot, &reply}) {
      for (auto& buffer : *set) buffer = std::make_unique<Buffer>(bytes);
    }
  }
  size_t count;
  Buffer parameters;
  std::unique_ptr<Buffer> gradient[kDepth], result[kDepth], slot[kDepth], reply[kDepth];
  Line pushed, answered;
};

void Copy(SharedMemoryLimit limit, float* target, const float* source, size_t count) {
  if (limit == SharedMemoryLimit::kCopyStreaming) {
    CopyStreaming(target, source, count);
  } else {
    std::memcpy(target, source, count * sizeof(float));
  }
}

bool Copies(SharedMemoryLimit limit) {
  return limit == SharedMemoryLimit::kCopy || limit == SharedMemoryLimit::kCopyStreaming;
}

void Serve(SharedMemoryLimit limit, int rounds, Shared* shared) {
  float* parameters = shared->parameters.data();
  const size_t count = shared->count;
  for (int i = 0; i < rounds; ++i) {
    while (shared->pushed.sequence.load(std::memory_order_acquire) <= static_cast<uint32_t>(i)) {
      Pause();
    }
    const int k = i % kDepth;
    if (Copies(limit)) {
      Sum(parameters, shared->slot[k]->data(), count);
      Copy(limit, shared->reply[k]->data(), parameters, count);
    } else if (limit == SharedMemoryLimit::kReferencePrefetch) {
      SumOutPrefetch(parameters, shared->gradient[k]->data(), shared->result[k]->data(), count);
    } else {
      SumOut(parameters, shared->gradient[k]->data(), shared->result[k]->data(), count);
    }
    shared->answered.sequence.store(static_cast<uint32_t>(i) + 1, std::memory_order_release);
  }
}

}  // namespace

VERBENA_BEST_TARGET void FillGradient(float* gradient, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) gradient[i] = value;
}

VERBENA_BEST_TARGET float ReadResult(const float* result, size_t count) {
  // Sixteen sums, so that the loop need not wait for each addition.
  float sums[16] = {};
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (size_t k = 0; k < 16; ++k) sums[k] += result[i + k];
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  for (; i < count; ++i) total += result[i];
  return total;
}

double SharedMemoryGigabytes(SharedMemoryLimit limit, size_t bytes) {
  const int rounds = RoundsFor(bytes);
  Shared shared(bytes);
  const size_t count = shared.count;
  std::thread server([&] {
    PinToCpu(1);
    Serve(limit, rounds, &shared);
  });
  volatile float sink = 0;
  int done = 0;
  const auto finish = [&] {
    const int k = done % kDepth;
    while (shared.answered.sequence.load(std::memory_order_acquire) <=
           static_cast<uint32_t>(done)) {
      Pause();
    }
    if (Copies(limit)) {
      // The result is read right away: a streaming store would send it to memory first.
      std::memcpy(shared.result[k]->data(), shared.reply[k]->data(), bytes);
    }
    sink = sink + ReadResult(shared.result[k]->data(), count);
    ++done;
  };
  const auto start = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    const int k = i % kDepth;
    if (i - done >= kDepth) finish();
    FillGradient(shared.gradient[k]->data(), count, static_cast<float>(i) * 0.001f);
    if (Copies(limit)) Copy(limit, shared.slot[k]->data(), shared.gradient[k]->data(), count);
    shared.pushed.sequence.store(static_cast<uint32_t>(i) + 1, std::memory_order_release);
    while (shared.answered.sequence.load(std::memory_order_acquire) > static_cast<uint32_t>(done)) {
      finish();
    }
  }
  while (done < rounds) finish();
  const double seconds = SecondsSince(start);
  server.join();
  return 2.0 * rounds * static_cast<double>(bytes) / seconds / 1e9;
}

double PingPongNanos(int rounds) {
  Line there;
  Line back;
  std::thread server([&] {
    PinToCpu(1);
    float sums[15] = {};
    for (uint32_t i = 1; i <= static_cast<uint32_t>(rounds); ++i) {
      while (there.sequence.load(std::memory_order_acquire) != i) {
      }
      for (size_t k = 0; k < 15; ++k) sums[k] += there.payload[k];
      back.payload[0] = sums[i % 15];
      back.sequence.store(i, std::memory_order_release);
    }
  });
  const auto start = Clock::now();
  for (uint32_t i = 1; i <= static_cast<uint32_t>(rounds); ++i) {
    for (float& value : there.payload) value = static_cast<float>(i);
    there.sequence.store(i, std::memory_order_release);
    while (back.sequence.load(std::memory_order_acquire) != i) {
    }
  }
  const double seconds = SecondsSince(start);
  server.join();
  return seconds / rounds * 1e9;
}

double WakeMicros(int rounds, int gap_us) {
  const int there = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const int back = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const auto await = [](int epoll, int event) {
    epoll_event ready;
    uint64_t value;
    do {
      epoll_wait(epoll, &ready, 1, -1);
    } while (read(event, &value, sizeof value) != sizeof value);
  };
  const auto watch = [](int event) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event wanted = {};
    wanted.events = EPOLLIN;
    epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted);
    return epoll;
  };
  const auto signal = [](int event) {
    const uint64_t one = 1;
    (void)!write(event, &one, sizeof one);
  };
  std::thread server([&] {
    PinToCpu(1);
    const int epoll = watch(there);
    for (int i = 0; i < rounds; ++i) {
      await(epoll, there);
      signal(back);
    }
    close(epoll);
  });
  const int epoll = watch(back);
  double seconds = 0;
  for (int i = 0; i < rounds; ++i) {
    if (gap_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(gap_us));
    const auto start = Clock::now();
    signal(there);
    await(epoll, back);
    seconds += SecondsSince(start);
  }
  server.join();
  close(epoll);
  close(there);
  close(back);
  return seconds / rounds * 1e6;
}

}  // namespace verbena::bench
