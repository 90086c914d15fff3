#include "proto/base/process_start.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <vector>

namespace verbena {
namespace {

// Sanitizers have a malloc() of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kReplaced = true;
#else
constexpr bool kReplaced = false;
#endif

TEST_CASE("large blocks are mapped after others of their size have been freed") {
  if (kReplaced) return;
  ReturnLargeBlocks();
  constexpr size_t kBytes = 3 * kMappedBlockBytes;
  // Without the fixed threshold, this free() moves all later blocks of this size into the heap.
  std::free(std::malloc(kBytes));
  const size_t mapped_before = mallinfo2().hblkhd;
  std::vector<void*> blocks(8);
  for (void*& block : blocks) block = std::malloc(kBytes);
  CHECK(mallinfo2().hblkhd >= mapped_before + blocks.size() * kBytes);
  for (void* block : blocks) std::free(block);
  CHECK(mallinfo2().hblkhd == mapped_before);
}

// Bytes of address space.
size_t AddressSpace() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// How much more address space `threads` threads take that all allocate, without their stacks.
size_t TakenByThreads(size_t threads) {
  constexpr size_t kStackBytes = size_t{1} << 20;
  std::mutex held;
  std::vector<pthread_t> started(threads);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const size_t before = AddressSpace();
  held.lock();
  std::atomic<size_t> allocated{0};
  struct Shared {
    std::mutex* held;
    std::atomic<size_t>* allocated;
  } shared{&held, &allocated};
  for (pthread_t& thread : started) {
    const int failed = pthread_create(
        &thread, &attributes,
        [](void* argument) -> void* {
          const Shared& of_all = *static_cast<Shared*>(argument);
          void* volatile const block = std::malloc(5000);  // not left out by the compiler
          ++*of_all.allocated;
          const std::lock_guard<std::mutex> wait(*of_all.held);
          std::free(block);
          return nullptr;
        },
        &shared);
    if (failed != 0) return SIZE_MAX;
  }
  while (allocated < threads) sched_yield();
  const size_t taken = AddressSpace() - before;
  held.unlock();
  for (const pthread_t thread : started) pthread_join(thread, nullptr);
  return taken - std::min(taken, threads * kStackBytes);
}

TEST_CASE("under RLIMIT_AS heaps of threads leave address space for other things") {
  if (kReplaced) return;
  const auto run = [](size_t limit, size_t threads, size_t most) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      unsetenv("MALLOC_ARENA_MAX");
      const rlimit little = {limit, limit};
      setrlimit(RLIMIT_AS, &little);
      BoundHeaps();
      _exit(TakenByThreads(threads) <= most ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  };
  run(kAddressSpaceOfHeap, 12, size_t{64} << 20);
  run(kAddressSpaceOfHeap / 2, 12, size_t{64} << 20);
  // Three heaps beside the first.
  run(4 * kAddressSpaceOfHeap, 12, size_t{4 * 64} << 20);
}

TEST_CASE("standard descriptors that are closed become /dev/null") {
  // In a child: the test's own output stays.
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int fd : {0, 1, 2}) close(fd);
    OpenStandardDescriptors();
    const int next = open("/dev/zero", O_RDONLY);
    _exit(next >= 3 && write(STDERR_FILENO, "x", 1) == 1 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
}  // namespace verbena
