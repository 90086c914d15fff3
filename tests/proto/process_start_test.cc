#include "proto/process_start.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
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
