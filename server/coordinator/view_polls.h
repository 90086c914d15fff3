// Callers of GetView() that wait for a newer view.
//
// A change of tables, or of another job, does not end the wait of a worker: it hears of that with
// its next heartbeat, or when it asks. So many clients that do nothing cost nothing while tables
// and jobs come and go. With many waiting, changes that follow one another are published together.
// An answer may take a millisecond, and a caller may have thousands of polls: they are answered in
// turns, and heartbeats come between.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
//  1. A poll is due when its wait is over at the latest, and each is taken once.
//  2. Changes that affect the movement of data concern all callers: servers, partitions, and lost
//     parts of a table.
//  3. At most kMostInAll polls wait, MostOf() of them of one caller: beyond them its oldest is
//     due at once, because its caller may have lost the connection that it came on.
#ifndef VERBENA_SERVER_COORDINATOR_VIEW_POLLS_H_
#define VERBENA_SERVER_COORDINATOR_VIEW_POLLS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/coordinator/view_editor.h"
#include "server/nanoseconds.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class ViewPolls {
 public:
  // With this many polls waiting, answering them takes so long that changes which follow each other
  // within a gap are published together. The gap is at least 20 ms, and at least four times the
  // time of the answers.
  static constexpr size_t kMany = 64;
  static constexpr int64_t kGapNanos = 20 * kNanosPerMilli;
  static constexpr int64_t kLongestGapNanos = 500 * kNanosPerMilli;
  // The longest time that polls are answered for without a look at other calls.
  static constexpr int64_t kTurnNanos = 2 * kNanosPerMilli;

  // Waiting polls of all callers: each takes about 20 KB with its call.
  static constexpr size_t kMostInAll = 16384;
  // Polls of a member: one, and those of its earlier connections.
  static constexpr size_t kMostOfMember = 4;
  // Polls of a token (or host) whose callers are no members.
  static constexpr size_t kMostOfOthers = 64;

  // The caller. Without a queue, callers are not distinguished.
  struct Caller {
    std::string queue;    // a token's id, or a host
    uint64_t member = 0;  // an incarnation in the view; 0: none
    bool operator==(const Caller&) const = default;
  };
  struct Poll {
    Caller caller = {};
    uint64_t known = 0;  // revision of the caller's view
    int64_t due_ns = 0;
    bool takes_changes = false;
    std::string job;  // of the worker that waits; empty: of another caller, which all changes
                      // concern
    absl::AnyInvocable<void(absl::StatusOr<v1::GetViewResponse>)> reply;
    bool concerned = false;  // by a change since it was added
  };

  bool full() const { return polls_.size() + due_.size() >= kMostInAll; }
  // Not when full(). False: the caller has too many, and its oldest is due.
  bool Add(Poll poll);
  void Changed(const ViewEditor::Concern& concern);
  // Takes one poll whose wait is over; none: there is none. Call it again while there are.
  std::optional<Poll> Take(int64_t now);
  std::vector<Poll> TakeAll();
  // Polls that Take() gave from `began` on were answered with a newer view by `ended`.
  void Published(int64_t began, int64_t ended);
  // When Take() has something to give; INT64_MAX: never.
  int64_t NextDueNanos() const { return due_.empty() ? next_ns_ : 0; }

 private:
  static size_t MostOf(const Caller& caller) {
    return caller.member != 0 ? kMostOfMember : kMostOfOthers;
  }
  // Moves those whose wait is over to due_.
  void Collect(int64_t now);
  void Forget(const Caller& caller);

  std::vector<Poll> polls_;                                       // oldest first
  std::map<std::pair<std::string, uint64_t>, size_t> of_caller_;  // how many of polls_
  std::deque<Poll> due_;
  int64_t next_ns_ = kNever;
  int64_t publish_from_ns_ = 0;  // not before, with many polls
  int64_t publishing_ns_ = 0;    // time of answering the polls that were due together
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_VIEW_POLLS_H_
