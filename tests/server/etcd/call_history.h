// A record of coordinator calls, and a check that it is linearizable: there is one order of all
// calls in which each takes effect between its begin and its end, and in which one coordinator that
// never fails would have given the same answers.
//
// The check searches for such an order table by table (Wing and Gong 1993, with the visited
// configurations of Lowe 2017). A call without a known outcome may take effect at any time after
// its begin, or never. The search is sound: a part of a linearizable history is linearizable, so an
// order that does not exist for one table does not exist for all. Reads tie the tables together: an
// order for one table must also follow the revisions that its calls returned, and each revision is
// one state of all tables. Incarnations and table ids are given out once, in increasing order.
//
// **Thread safety**: CallHistory: every function from any thread; the rest are pure functions.
#ifndef VERBENA_TESTS_SERVER_ETCD_CALL_HISTORY_H_
#define VERBENA_TESTS_SERVER_ETCD_CALL_HISTORY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "verbena/v1/cluster.pb.h"

namespace verbena::test {

struct RecordedCall {
  enum class Kind { kCreate, kDrop, kJoin, kRead };
  enum class Outcome {
    kUnknown,  // without an answer, or with one that leaves it open: perhaps applied, now or later
    kDone,
    kRefused,  // certainly not applied
  };
  Kind kind = Kind::kRead;
  Outcome outcome = Outcome::kUnknown;
  // Positions in the order in which callers began and ended their calls.
  int64_t began = 0;
  int64_t ended = std::numeric_limits<int64_t>::max();
  std::string name = {};                        // create, drop: of the table
  uint64_t id = 0;                              // create: of the table; join: the incarnation
  bool found = false;                           // drop: there was such a table
  uint64_t revision = 0;                        // drop, read: of the view; 0: not known
  uint64_t term = 0;                            // read
  std::map<std::string, uint64_t> tables = {};  // read: ids by name
};

class CallHistory {
 public:
  using Kind = RecordedCall::Kind;
  // Reads keep the tables whose names begin so: all that others change must have other names.
  explicit CallHistory(std::string prefix = {}) : prefix_(std::move(prefix)) {}

  // Before the call is sent. The result names it to the others, of which one may be called once,
  // after its answer has arrived; without that its outcome is unknown.
  size_t Begin(Kind kind, const std::string& name = {});
  void Created(size_t call, uint64_t id);
  void Dropped(size_t call, bool found, uint64_t revision);
  void Joined(size_t call, uint64_t incarnation);
  void Read(size_t call, const v1::ClusterView& view);
  void Refused(size_t call);

  std::vector<RecordedCall> calls() const;

 private:
  RecordedCall& End(size_t call, RecordedCall::Outcome outcome);

  const std::string prefix_;
  mutable std::mutex mutex_;
  int64_t now_ = 0;                  // guarded by mutex_
  std::vector<RecordedCall> calls_;  // guarded by mutex_
};

// The first violation; empty: the history is linearizable.
std::string Violation(const std::vector<RecordedCall>& calls);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_ETCD_CALL_HISTORY_H_
