// Child processes of a test: started, watched and always ended.
//
// **Thread safety**: one owner thread an object.
#ifndef VERBENA_TESTS_SUPPORT_PROCESS_H_
#define VERBENA_TESTS_SUPPORT_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace verbena::test {

// A directory that goes with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The whole file; empty when it is not there.
std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& content);

// A program with its output in files. The destructor kills it (SIGKILL) and its process group.
class Process {
 public:
  // argv[0] is a path. Standard output and error go to files that out() and err() read.
  explicit Process(const std::vector<std::string>& argv);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // SIGSTOP: returns once every thread has stopped, which on a busy machine takes a while.
  void Signal(int signal) const;
  // The exit status (or 128 + signal) once it has ended; nullopt when it runs on after `at_most`.
  std::optional<int> Wait(absl::Duration at_most = absl::Seconds(60));
  bool running() { return !Wait(absl::ZeroDuration()).has_value(); }
  std::string out() const;
  std::string err() const;
  // Its end, for the message of a failure.
  std::string err_end() const;
  // Waits until err() or out() contains `text`; false when it ends or the time is over first.
  bool WaitFor(const std::string& text, absl::Duration at_most = absl::Seconds(30));

 private:
  TemporaryDirectory directory_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

// Runs to the end (killed after `at_most`: status 137).
struct Finished {
  int status = 0;
  std::string out, err;
};
Finished RunProgram(const std::vector<std::string>& argv,
                    absl::Duration at_most = absl::Seconds(120));

// Polls `condition` until it holds; false when the time is over first.
template <typename F>
bool Eventually(F condition, absl::Duration at_most = absl::Seconds(30)) {
  const absl::Time end = absl::Now() + at_most;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));  // between looks at the condition
  }
  return true;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_PROCESS_H_
