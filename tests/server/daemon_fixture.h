// verbenad as a process: started with free ports, found by its ready file.
#ifndef VERBENA_TESTS_SERVER_DAEMON_FIXTURE_H_
#define VERBENA_TESTS_SERVER_DAEMON_FIXTURE_H_

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/process.h"

namespace verbena::test {

// Runs to the end; for refused options.
inline Finished Verbenad(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), VerbenadPath());
  return RunProgram(arguments, absl::Seconds(60));
}

class Daemon {
 public:
  // --listen, --metrics and --ready-file are added. `before`: a command that runs the daemon, which
  // follows.
  explicit Daemon(std::vector<std::string> arguments, std::vector<std::string> before = {})
      : ready_file_(directory_.File("ready")),
        process_(Command(std::move(arguments), std::move(before))) {}

  // Waits for the ready file; fails the test when the daemon ends first.
  Daemon& Ready() {
    const bool ready =
        Eventually([&] { return !ReadFile(ready_file_).empty() || !process_.running(); });
    INFO(process_.err());
    REQUIRE(ready);
    REQUIRE_FALSE(ready_text().empty());
    return *this;
  }
  std::string ready_text() const { return ReadFile(ready_file_); }
  std::string address() const { return JsonField(ready_text(), "address"); }
  std::string metrics() const { return JsonField(ready_text(), "metrics"); }
  Process& process() { return process_; }

 private:
  std::vector<std::string> Command(std::vector<std::string> arguments,
                                   std::vector<std::string> command) const {
    command.insert(command.end(), {VerbenadPath(), "--listen", "127.0.0.1:0", "--metrics",
                                   "127.0.0.1:0", "--ready-file", ready_file_});
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  TemporaryDirectory directory_;
  std::string ready_file_;
  Process process_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_DAEMON_FIXTURE_H_
