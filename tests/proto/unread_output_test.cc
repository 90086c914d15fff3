#include "proto/base/unread_output.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace verbena {
namespace {

TEST_CASE("a pipe takes lines until it is full, and then the writer does not wait") {
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

// Writes from several threads until there is no room. False: one still waits after some seconds.
bool AllEnd(int fd, int threads, size_t length, const std::function<void()>& release) {
  std::atomic<int> running{threads};
  std::vector<std::thread> writers;
  for (int i = 0; i < threads; ++i) {
    writers.emplace_back([&] {
      const std::string line = std::string(length, 'x') + '\n';
      for (int n = 0; n < 2000; ++n) WriteUnlessFull(fd, line);
      --running;
    });
  }
  const absl::Time end = absl::Now() + absl::Seconds(5);
  while (running > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  const bool all = running == 0;
  while (running > 0) release();
  for (std::thread& writer : writers) writer.join();
  return all;
}

void ReadSome(int fd) {
  char some[65536];
  pollfd readable = {fd, POLLIN, 0};
  if (poll(&readable, 1, 10) == 1) (void)!read(fd, some, sizeof(some));
}

// poll(2) finds room in a terminal as soon as there is any.
TEST_CASE("regression: a writer does not wait for a terminal with less space than a line") {
  const size_t length = GENERATE(150, 1000, 4000, 20'000);
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(master >= 0);
  REQUIRE(grantpt(master) == 0);
  REQUIRE(unlockpt(master) == 0);
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  CHECK(AllEnd(terminal, 1, length, [&] { ReadSome(master); }));
  close(terminal);
  close(master);
}

TEST_CASE("several writers of one pipe do not wait for its reader") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  CHECK(AllEnd(ends[1], 8, 1000, [&] { ReadSome(ends[0]); }));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a socket takes lines until it is full") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  CHECK(AllEnd(ends[1], 4, 1000, [&] { ReadSome(ends[0]); }));
  close(ends[0]);
  CHECK_FALSE(WriteUnlessFull(ends[1], "line\n"));  // and no signal ends the process
  close(ends[1]);
}

TEST_CASE("a closed descriptor does not end the process") {
  CHECK_FALSE(WriteUnlessFull(-1, "line\n"));
}

}  // namespace
}  // namespace verbena
