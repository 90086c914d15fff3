// One worker process, for its launcher.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. A process is reaped exactly once, and never signalled after: its pid may be another's then.
#ifndef VERBENA_WORKER_TRAIN_CHILD_H_
#define VERBENA_WORKER_TRAIN_CHILD_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/train/channel.h"

namespace verbena::worker {

class Child {
 public:
  // Runs this executable with `arguments` (the first is its name) and --worker-channel FD. The
  // child gets SIGTERM when the calling thread ends for any reason.
  static absl::StatusOr<Child> Start(std::vector<std::string> arguments);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // closes the channel; leaves a process that was not reaped alone

  pid_t pid() const { return pid_; }
  int channel() const { return channel_; }  // -1 once closed
  bool running() const { return running_; }

  // The next message that has arrived, if any. Closes the channel at its end.
  std::optional<ChannelMessage> Poll();
  bool Send(ChannelMessage::Kind kind);
  // Whether it has just ended; returns how ("was killed by SIGKILL", "exited with status 1").
  std::optional<std::string> Reap();
  void Signal(int signal);

 private:
  Child(pid_t pid, int channel) : pid_(pid), channel_(channel) {}
  void CloseChannel();

  pid_t pid_;
  int channel_;
  bool running_ = true;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_CHILD_H_
