#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace verbena::test {
namespace {

// A test cannot go on without its files and processes.
[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "verbena-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) Fail("mkdtemp");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

Process::Process(const std::vector<std::string>& argv) {
  std::vector<char*> arguments;
  for (const std::string& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  const std::string out = directory_.File("out");
  const std::string err = directory_.File("err");
  pid_ = fork();
  if (pid_ < 0) Fail("fork");
  if (pid_ == 0) {
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY);
    const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int err_fd = open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(null, 0);
    dup2(out_fd, 1);
    dup2(err_fd, 2);
    execv(arguments[0], arguments.data());
    std::perror(arguments[0]);
    _exit(127);
  }
  setpgid(pid_, pid_);  // in both processes, so that it holds in either order
}

Process::~Process() {
  if (!status_) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  } else {
    kill(-pid_, SIGKILL);  // children it may have left
  }
}

namespace {

// Every thread is stopped, or none is left (proc(5): /proc/PID/task/TID/stat).
bool Stopped(pid_t pid) {
  std::error_code gone;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    const std::string stat = ReadFile(task.path().string() + "/stat");
    // The name before the state is in parentheses and may hold any character.
    const size_t name = stat.rfind(')');
    if (name != std::string::npos && name + 2 < stat.size() && stat[name + 2] != 'T') return false;
  }
  return true;
}

}  // namespace

void Process::Signal(int signal) const {
  if (status_) return;
  kill(pid_, signal);
  if (signal == SIGSTOP) Eventually([this] { return Stopped(pid_); });
}

std::optional<int> Process::Wait(absl::Duration at_most) {
  if (status_) return status_;
  Eventually(
      [this] {
        int status = 0;
        if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
      },
      at_most);
  return status_;
}

std::string Process::out() const { return ReadFile(directory_.File("out")); }
std::string Process::err() const { return ReadFile(directory_.File("err")); }

std::string Process::err_end() const {
  constexpr size_t kBytes = 2000;
  const std::string text = err();
  return text.substr(text.size() - std::min(text.size(), kBytes));
}

bool Process::WaitFor(const std::string& text, absl::Duration at_most) {
  const auto seen = [&] {
    return err().find(text) != std::string::npos || out().find(text) != std::string::npos;
  };
  Eventually([&] { return seen() || !running(); }, at_most);
  return seen();
}

Finished RunProgram(const std::vector<std::string>& argv, absl::Duration at_most) {
  Process process(argv);
  std::optional<int> status = process.Wait(at_most);
  if (!status) {
    process.Signal(SIGKILL);
    process.Wait();
    status = 137;
  }
  return {*status, process.out(), process.err()};
}

}  // namespace verbena::test
