#include "proto/unread_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "absl/time/clock.h"

namespace verbena {
namespace {

TEST_CASE("a pipe takes what it has room for; then nobody waits") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const std::string line(1000, 'x');
  int written = 0;
  while (WriteUnlessFull(ends[1], line) && written < 1000) ++written;
  CHECK(written >= 60);  // 64 KiB
  CHECK(written < 1000);
  const absl::Time begin = absl::Now();
  CHECK_FALSE(WriteUnlessFull(ends[1], line, absl::Milliseconds(50)));
  CHECK(absl::Now() - begin < absl::Seconds(10));
  std::string all(1 << 17, '\0');
  const ssize_t got = read(ends[0], all.data(), all.size());
  CHECK(got >= written * 1000);
  CHECK(WriteUnlessFull(ends[1], line));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a descriptor that is closed is no reason to end") {
  CHECK_FALSE(WriteUnlessFull(-1, "line\n"));
}

}  // namespace
}  // namespace verbena
