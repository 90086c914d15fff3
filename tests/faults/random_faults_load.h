// The load that one client of random_faults puts on a table: rounds of pushes, and readings.
//
// **Thread safety**: a Pusher and a Reader belong to one thread each; both of one table may run at
// the same time, on one client.
//
// **Invariants**
// 1. Pushes of one Pusher to a dense table do not overlap, and a client has one Pusher a table.
// 2. All Pushers of a sync or ssp table end at the same step (TableLedger::stop_step), so that
//    no worker waits for one that has ended.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_LOAD_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_LOAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/faults/random_faults_calls.h"
#include "tests/faults/random_faults_plan.h"
#include "verbena/client.h"

namespace verbena::test {

// A table as one client has it.
struct OpenTable {
  TablePlan plan;
  Table handle;
  TableLedger* ledger;
};

class Pusher {
 public:
  enum class Role {
    kLeader,   // sets the step at which all end
    kMember,   // ends at that step
    kVisitor,  // ends whenever its owner likes: only in jobs without sync tables
  };
  Pusher(Client* client, CallCheck* calls, OpenTable table, Role role, uint64_t seed);
  // One round: some pushes, in a sync or ssp table the end of a step, and a small reading. False:
  // the run is over, or something has failed.
  bool Round();

 private:
  struct Flight {
    Ticket ticket;
    CallCheck::Call call;
    std::vector<uint64_t> units;       // pushed
    std::unique_ptr<Reading> reading;  // of a push-pull
    Region values;
  };

  bool Over();
  bool Prepare();
  void PushChunks(std::vector<Flight>* flights);
  void PushSomeRows(std::vector<Flight>* flights);
  bool Settle(std::vector<Flight>* flights);
  bool ReadOne();
  bool ends_steps() const { return table_.plan.consistency != v1::CONSISTENCY_ASYNC; }

  Client* client_;
  CallCheck* calls_;
  OpenTable table_;
  Role role_;
  Draw draw_;
  uint64_t step_ = 0;
  uint64_t rounds_ = 0;
  bool step_ended_ = false;  // by a push-pull of the whole table
  Region ones_;
};

class Reader {
 public:
  // `callbacks`: the client makes progress without a waiting thread.
  Reader(Client* client, CallCheck* calls, std::vector<OpenTable> tables, bool callbacks,
         uint64_t seed);
  // One call of a drawn kind on a drawn table, with memory made for it. False: it failed.
  bool Read();
  // Reads a whole table; its values must be the exact sums of all acknowledged pushes.
  bool ReadAll(const OpenTable& table);

 private:
  enum class End { kWait, kWaitInParts, kCallback, kShort, kCancel };
  bool ReadChunks(const OpenTable& table, End end);
  bool ReadRows(const OpenTable& table, End end);
  bool Announce(const OpenTable& table);
  bool ScanRows(const OpenTable& table, bool all);
  // Memory for it; of either kind. Empty when it failed.
  Region Memory(size_t bytes);
  // Gives it back, at once or later.
  void Done(Region region);
  bool Await(Ticket ticket, End end, const CallCheck::Call& call);
  bool Good(const std::string& problem);

  Client* client_;
  CallCheck* calls_;
  std::vector<OpenTable> tables_;
  bool callbacks_;
  Draw draw_;
  std::vector<float> own_;  // registered memory
  // Small regions that were read into, given back many at once.
  std::vector<Region> held_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_LOAD_H_
