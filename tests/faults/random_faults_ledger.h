// The ledger of a run of random_faults: memory that all its processes share, with the number of
// pushes that were attempted and acknowledged for each unit of each table, the run's phase, and
// the failures that were found.
//
// **Thread safety**: everything, from any thread of any process that has the file open.
//
// **Invariants**
// 1. A unit's count is in `attempted` before its push is called, and in `acked` only after the
//    push has ended OK. So at any time acked <= the table's value <= attempted.
// 2. The memory holds no pointer and outlives every process that writes to it, killed or not.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_LEDGER_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::test {

enum class Phase : uint32_t {
  kSetUp,  // clients connect and create tables
  kRun,    // at full rate
  kStop,   // clients end, those of a table with steps at the same one
  kAbort,  // a failure was found: everything ends at once
};

struct TableLedger {
  static constexpr uint64_t kMostUnits = 5000;
  // Steps of a sync or ssp table after which its workers end; set by the worker of rank 0.
  std::atomic<uint64_t> stop_step;
  std::atomic<uint64_t> attempted[kMostUnits];
  std::atomic<uint64_t> acked[kMostUnits];
};

struct ClientLedger {
  std::atomic<uint32_t> ready;       // connected, with its tables
  std::atomic<uint64_t> calls;       // that have ended, of all kinds
  std::atomic<uint64_t> expired;     // of these, at a deadline that was meant to be short
  std::atomic<uint64_t> longest_ms;  // of a call
};

// Quick calls to an idle table, alone and while another thread of the client waits for an answer;
// those without a fault meanwhile.
struct ProbeLedger {
  std::atomic<uint32_t> ready;
  std::atomic<uint64_t> batches;
  std::atomic<uint64_t> slow;       // of these, by far slower beside a waiting thread
  std::atomic<uint64_t> alone_us;   // largest third quartile of a batch
  std::atomic<uint64_t> beside_us;  // the same beside a waiting thread
};

// A call that has not ended, for the report of a run that hangs.
struct PendingLedger {
  std::atomic<uint32_t> taken;
  std::atomic<int64_t> since_ns;  // of the steady clock, one for all processes; 0: not set yet
  char text[120];
};

struct LedgerMemory {
  static constexpr int kTables = 64, kClients = 64, kFailures = 16, kPending = 1024;
  std::atomic<uint32_t> phase;
  // Odd while a fault is there or redundancy is not back yet; grows with every change.
  std::atomic<uint64_t> disturbance;
  std::atomic<uint32_t> failures;  // that were reported; the first kFailures have a text
  struct Failure {
    std::atomic<uint32_t> written;
    char text[1000];
  } failure[kFailures];
  ProbeLedger probe;
  PendingLedger pending[kPending];
  ClientLedger clients[kClients];
  TableLedger tables[kTables];
};

class Ledger {
 public:
  // Makes the file, or opens one that was made. Ends the process when it cannot.
  static Ledger Make(const std::string& path);
  static Ledger Open(const std::string& path);
  ~Ledger();
  Ledger(Ledger&& other) noexcept;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  LedgerMemory& memory() { return *memory_; }
  TableLedger& table(int index) { return memory_->tables[index]; }
  ClientLedger& client(int index) { return memory_->clients[index]; }

  Phase phase() const { return static_cast<Phase>(memory_->phase.load()); }
  // kAbort stays.
  void Enter(Phase phase);
  bool running() const { return phase() <= Phase::kRun; }
  bool aborted() const { return phase() == Phase::kAbort; }

  // Ends the run. From any process.
  void Fail(const std::string& text);
  std::vector<std::string> Failures() const;
  // Notes a call; returns its place, or -1 when there are too many.
  int BeginCall(const std::string& text);
  void EndCall(int place);
  // The calls that have been waiting longest, at most `most`, for longer than 5 s.
  std::string LongestPending(int most) const;
  uint64_t Calls() const;

  bool disturbed() const { return memory_->disturbance.load() % 2 == 1; }

 private:
  explicit Ledger(LedgerMemory* memory) : memory_(memory) {}
  LedgerMemory* memory_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_LEDGER_H_
