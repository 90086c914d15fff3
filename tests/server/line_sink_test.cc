#include "server/log/line_sink.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

namespace verbena::server {
namespace {

class Pipe {
 public:
  Pipe() {
    REQUIRE(pipe(ends_) == 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    sink_ = std::make_shared<LineSink>(ends_[1]);
    logger_ = std::make_unique<spdlog::logger>("test", sink_);
    logger_->set_pattern("%v");
  }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  std::string ReadAll() {
    std::string text;
    char buffer[4096];
    for (ssize_t bytes; (bytes = read(ends_[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(bytes));
    }
    return text;
  }
  spdlog::logger& logger() { return *logger_; }
  uint64_t dropped() const { return sink_->dropped(); }

 private:
  int ends_[2] = {-1, -1};
  std::shared_ptr<LineSink> sink_;
  std::unique_ptr<spdlog::logger> logger_;
};

TEST_CASE("lines that nobody reads are dropped and counted, and the log goes on afterwards") {
  Pipe pipe;
  const std::string line(100, 'x');
  // A pipe holds 64 KiB: this would block for ever without the sink's rule.
  for (int i = 0; i < 2000; ++i) pipe.logger().info(line);
  const uint64_t dropped = pipe.dropped();
  CHECK(dropped > 1000);
  CHECK(dropped < 2000);
  const std::string first = pipe.ReadAll();
  CHECK(first.size() == (2000 - dropped) * 101);
  pipe.logger().info("after");
  CHECK(pipe.ReadAll() ==
        std::to_string(dropped) + " log lines were dropped (nobody reads this output)\nafter\n");
  pipe.logger().info("again");
  CHECK(pipe.ReadAll() == "again\n");
}

TEST_CASE("a long line is whole where there is room, and ends in a newline where there is not") {
  Pipe pipe;
  const std::string longer(20'000, 'y');
  pipe.logger().info(longer);
  CHECK(pipe.ReadAll() == longer + "\n");
  for (int i = 0; i < 10; ++i) pipe.logger().info(longer);
  CHECK(pipe.dropped() > 0);
  const std::string cut = pipe.ReadAll();
  pipe.logger().info("after");
  const std::string rest = pipe.ReadAll();
  INFO(rest);
  CHECK((cut.back() == '\n' || rest.front() == '\n'));
  CHECK(rest.find("\nafter\n") != std::string::npos);
}

TEST_CASE("a descriptor that is closed, or has no reader, blocks nothing") {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  auto sink = std::make_shared<LineSink>(ends[1]);
  spdlog::logger logger("test", sink);
  logger.info("nobody");
  CHECK(sink->dropped() == 1);
  close(ends[1]);
  logger.info("closed");
  CHECK(sink->dropped() == 2);
}

// poll(2) reports a terminal as writable as soon as there is any room.
TEST_CASE("regression: a terminal that nobody reads blocks nothing") {
  const size_t length = GENERATE(150, 4000, 20'000);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const int ours = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(ours >= 0);
  auto sink = std::make_shared<LineSink>(ours);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    spdlog::logger logger("test", sink);
    const std::string line(length, 'x');
    for (int i = 0; i < 2000; ++i) logger.info(line);
    done = true;
  });
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(done);
  CHECK(sink->dropped() > 0);
  CHECK((fcntl(ours, F_GETFL) & O_NONBLOCK) == 0);
  close(terminal);  // ends a write that blocks
  writer.join();
  close(ours);
}

}  // namespace
}  // namespace verbena::server
