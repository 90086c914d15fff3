#include "worker/train/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"

namespace verbena::worker {
namespace {

// After fork(): only async-signal-safe calls (signal-safety(7)).
[[noreturn]] void Become(char* const* argv, int channel, pid_t launcher) {
  // A launcher that is killed outright must not leave workers behind. If it died before this call,
  // the parent is another process already.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // The result on stdout is the launcher's alone.
  dup2(STDERR_FILENO, STDOUT_FILENO);
  fcntl(channel, F_SETFD, 0);
  execv("/proc/self/exe", argv);
  // Without /proc: the path that this program was started by.
  execv(reinterpret_cast<const char*>(getauxval(AT_EXECFN)), argv);
  _exit(127);
}

}  // namespace

absl::StatusOr<Child> Child::Start(std::vector<std::string> arguments) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  arguments.push_back("--worker-channel");
  arguments.push_back(std::to_string(ends[1]));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(argv.data(), ends[1], launcher);
  const int error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot start a worker process: ", std::strerror(error), " (", ThreadLimits(), ")"));
  }
  return Child(pid, ends[0]);
}

Child::Child(Child&& other) noexcept
    : pid_(other.pid_),
      channel_(std::exchange(other.channel_, -1)),
      running_(std::exchange(other.running_, false)) {}

Child::~Child() { CloseChannel(); }

void Child::CloseChannel() {
  if (channel_ >= 0) close(channel_);
  channel_ = -1;
}

std::optional<ChannelMessage> Child::Poll() {
  if (channel_ < 0) return std::nullopt;
  pollfd ready = {channel_, POLLIN, 0};
  if (poll(&ready, 1, 0) <= 0) return std::nullopt;
  absl::StatusOr<ChannelMessage> message = ReceiveMessage(channel_);
  if (message.ok()) return *message;
  CloseChannel();
  return std::nullopt;
}

bool Child::Send(ChannelMessage::Kind kind) {
  if (channel_ < 0) return false;
  ChannelMessage message;
  message.kind = kind;
  return SendMessage(channel_, message).ok();
}

std::optional<std::string> Child::Reap() {
  int status = 0;
  if (!running_ || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  running_ = false;
  if (WIFSIGNALED(status)) {
    const char* name = sigabbrev_np(WTERMSIG(status));
    return name != nullptr ? absl::StrCat("was killed by SIG", name)
                           : absl::StrCat("was killed by signal ", WTERMSIG(status));
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(status));
}

void Child::Signal(int signal) {
  if (running_) kill(pid_, signal);
}

}  // namespace verbena::worker
