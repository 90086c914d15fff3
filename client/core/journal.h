// The journal: tracks every record from its creation until it is settled.
//
// Calls on rows of an embedding table are divided at the call into records of groups. There is one
// group per partition (key_plan.h has its keys), and one record per lane, or more if groups or
// bytes do not fit. Rows are packed into staging, and looked up through staging. It is taken when a
// record is posted, and released when the record is answered or its lane is dead. So a resent push
// is packed again, without keys if its call has ended. Pushes have separate staging, because
// lookups keep theirs while the server defers them. Lookups of bags are lookups whose replies are
// kept until the last one arrives (bag_call.h).
//
// Pushes and end-steps of a table use one queue per lane (TableLane), in order. sync: a push of
// step t waits in it until the commit of its chunk's step t - 1 is known, an end-step until that of
// its partitions' step t - 1 is. Pulls and awaits have a queue per lane. They may use half of its
// operations, because the server may defer them (record.h) while pushes must always get through.
// Norms and totals of steps that commit in two phases have a queue too: no step commits without
// them. So a server that cannot defer more of them replies at once (kTooEarly), and they are
// resent.
//
// A chunk in device memory is sent like host memory if the lane's transport can access it
// (GPUDirect), after the caller's enqueued work is done. Otherwise it is copied to separate staging
// before its record is posted, in advance while there is room, and from staging after its pull is
// answered (device_staging.h). The last buffer for pushes is reserved for the oldest push that is
// not copied, for the same reason for which lanes reserve a slot for it (ReserveOf()). While such a
// copy runs, the entry and the caller's memory are kept, even after the call has ended.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. The journal maintains the invariants of client_core.h.
//  2. async: sequences are assigned at the first posting and posted in order. Returned records are
//     reposted in order, after everything posted behind them is answered (TableLane::reordering).
//  3. An operation that ends removes its unposted records. Posted pushes stay until settled, as
//     empty records after their lane was lost; posted pulls stay until answered or their lane is
//     dead.
//  4. A group of rows keeps its sequence (sync: its index) when its record is divided again.
//  5. Posted unanswered pushes and end-steps of a part are all on one lane. The part changes rails
//     only when it has none, or when that lane is dead. Pulls, awaits and norms need no order and
//     stay on their lanes.
//  6. sync, of a partition with replicas (or with wanted replicas): an answered push is kept with
//     its buffer until the commit of its step is known. If the partition's primary or epoch
//     changes, the push is resent, before the accepted end-steps. A push that contributes zero, or
//     whose operation has ended, is kept without its buffer, as an empty record.
//  7. Records of a partition are posted to its new primary only when none of its pushes and
//     end-steps is in flight on the lane to the old one. That lane is closed as soon as the view
//     has the new primary, because a server that hangs would never answer.
#ifndef VERBENA_CLIENT_CORE_JOURNAL_H_
#define VERBENA_CLIENT_CORE_JOURNAL_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/core/entry.h"
#include "client/core/lane_set.h"
#include "client/core/norm_step.h"
#include "client/core/operations.h"
#include "client/core/session.h"
#include "client/core/table_state.h"
#include "client/staging/device_staging.h"
#include "client/staging/staging.h"

namespace verbena::client {

struct JournalCounters {
  uint64_t bytes_pushed = 0, bytes_pulled = 0, pushes = 0, pulls = 0;
  uint64_t resent = 0, staged_bytes = 0, direct_bytes = 0, referenced_bytes = 0, rail_moves = 0;
  std::array<uint64_t, kStalenessBuckets> staleness = {};
};

class Journal final : public LaneListener {
 public:
  // `staging`: for received data; `packing`: for sent rows. `direct_only`: calls on device memory
  // end with an error if the transport cannot access it.
  Journal(Session* session, Operations* operations, Staging* staging, Staging* packing,
          const Clock* clock, Random* random, bool direct_only)
      : session_(session),
        operations_(operations),
        staging_(staging),
        packing_(packing),
        clock_(clock),
        random_(random),
        direct_only_(direct_only) {}
  void set_lanes(LaneSet* lanes) { lanes_ = lanes; }

  // ---- starting (core_data.cc and core_rows.cc have checked the arguments) ----
  // Null: not in the view, or dropped.
  TableState* FindTable(uint32_t id);
  // DATA_LOSS: a part of [first_chunk, +chunks) is lost.
  absl::Status CheckLost(const TableState& table, uint32_t first_chunk, uint32_t chunks) const;
  // Chunks [first, +count), contiguous from `offset` of operation->blocks[0].
  void AddPushes(Operation* operation, uint32_t first, uint32_t count, size_t offset);
  // Adds pulls of such chunks into operation->blocks[1].
  void AddPulls(Operation* operation, uint32_t first, uint32_t count, size_t offset,
                uint64_t min_version);
  // Pairs: each chunk's pull follows its push.
  void AddPushPulls(Operation* operation, uint32_t first, uint32_t count, size_t push_offset,
                    size_t pull_offset, uint64_t min_version);
  // Ends the open step of `table`. async: `operation` (if any) waits for its records. sync: `await`
  // is true if the commit is requested.
  void AddEndStep(TableState* table, Operation* operation, bool await);
  // sync: the operation also waits for the commit of these chunks (count 0: of the whole table).
  void WaitForCommit(Operation* operation, uint32_t first, uint32_t count, uint64_t version);
  // For rows: the keys in operation->plan, from or to `offset` of its block.
  absl::Status CheckRowsLost(const TableState& table,
                             absl::Span<const KeyPlan::Range> ranges) const;
  void AddRowPushes(Operation* operation, size_t offset);
  void AddLookups(Operation* operation, size_t offset, uint64_t min_version);
  // For sums of rows, to operation->sums: the bags in operation->bags, built within these limits.
  BagCall::Limits BagLimits(const TableState& table) const;
  void AddBagLookups(Operation* operation, uint64_t min_version);
  void AddIntents(Operation* operation);
  void WaitForRows(Operation* operation, uint64_t version);
  // Adds one record, with the result in operation->scan.
  void AddScan(Operation* operation, uint32_t part, uint64_t cursor);
  KeyScratch* key_scratch() { return &key_scratch_; }
  // FAILED_PRECONDITION: the open step of `table` cannot end, because a table of the same norm is
  // at another step.
  absl::Status CheckNormStep(absl::string_view call, const TableState& table);
  // Call after the last Add function.
  void Started(Operation* operation) { MaybeDone(operation); }

  // ---- ending ----
  void End(Operation* operation, absl::Status status);
  void EndAll(const absl::Status& status);
  void ReleaseBlock(uint64_t block_id);
  bool InUse(uint64_t block_id) const;

  // ---- progress ----
  // `what` differs from the previous view.
  void OnView(const ViewDifference& what);
  // Memory in registration is ready, or was refused.
  void OnMemoryReady();
  bool Pump();
  bool RunTimers(int64_t now);
  int64_t NextTimerNanos() const;
  bool busy() const { return entries_.in_use() != 0; }
  // Whether `operation`, the only live one, needs no work before each lane's last reply. This is so
  // if only a few records are in flight, all of this operation, none waits to be posted, and none
  // follows from a reply. (With many records, early replies should be handled meanwhile. A record
  // of an ended operation may be answered much later than this operation's, so the last reply would
  // come too late.)
  bool OnlyAnswersLeft(const Operation* operation) const;
  const JournalCounters& counters() const { return counters_; }
  size_t tables() const { return tables_.size(); }
  const Session& session() const { return *session_; }

  // A turn is full after this many bytes were decoded or copied: a few milliseconds of work.
  static constexpr uint64_t kTurnBytes = 4 << 20;
  void BeginTurn() override { turn_bytes_ = 0; }
  bool TurnIsFull() const override { return turn_bytes_ >= kTurnBytes; }
  // The turn took much longer than a poll.
  bool long_turn() const { return turn_bytes_ >= kTurnBytes / 4; }

  void OnLaneOpen(Stream* stream) override;
  void OnCredit(Stream* stream) override {
    if (stream->stalled) Touch(stream);
  }
  void OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply) override;
  void OnLaneDead(Stream* stream) override;
  void OnLaneRefused(Stream* stream, const absl::Status& status) override;

 private:
  // ---- queues (journal.cc) ----
  Entry* NewEntry(RecordType type, TableState* table, Operation* operation);
  Entry* NewPush(Operation* operation, uint32_t chunk, std::byte* data);
  Entry* NewPull(Operation* operation, uint32_t chunk, std::byte* data, uint64_t min_version);
  Entry* NewRest(const Entry& entry);                 // of the same record, without groups
  Entry* NewGroup(const Entry& entry, size_t group);  // of the same record, with this group alone
  // Splits off the groups for whose part `same` is false, if any.
  Entry* SplitOff(Entry* entry, absl::FunctionRef<bool(const PartState&)> same);
  void Enqueue(Entry* entry);  // by its order, on the current lane(s) of its parts
  void EnqueueOn(TableLane* lane, Entry* entry);
  void EnqueuePull(Entry* entry, bool front);  // on the current stream(s) of its parts
  void EnqueuePullOn(Stream* stream, Entry* entry, bool front);
  void AddAwaits(TableState* table, uint64_t version);
  void AddAwait(TableState* table, uint64_t version, Stream* stream,
                const std::vector<uint32_t>& parts);
  void Unqueue(Entry* entry);  // from its queue
  void Free(Entry* entry);
  void Detach(Entry* entry);  // from its operation
  void ReleaseBuffer(Entry* entry);
  Staging* StagingOf(const Entry& entry);
  void GiveStaging(Entry* entry);
  void TouchStalled();
  // `more`: entries in no queue, which are rerouted together with the queued ones.
  void Reroute(TableState* table, std::vector<Entry*> more = {});
  void Touch(Stream* stream);
  void NoteTimer(int64_t at);

  // ---- kept for a server that takes over (journal_kept.cc) ----
  // Whether an answered push of that step may be needed again.
  bool Keeps(const TableState& table, uint32_t chunk, uint64_t step) const;
  // Replaces Settled(). `zero`: the push contributes zero.
  void Keep(Entry* entry, bool zero);
  void KeepRows(const Entry& entry, size_t group);  // one group of the entry
  static EntryQueue* KeptOf(const Entry& entry);
  void TakeKept(TableState* table, uint32_t part, std::vector<Entry*>* entries);
  void DropKept(TableState* table, uint32_t part);
  // Learns commits from a reply.
  void LearnChunk(TableState* table, uint32_t chunk, uint64_t version);
  void LearnPart(TableState* table, uint32_t part, uint64_t version);
  void ReleaseKept(TableState* table, uint32_t chunk);

  // ---- partitions that have a new primary (journal_moved.cc) ----
  // Updates the location of each part from the view. False: no location or epoch has changed.
  bool Route(TableState* table);
  void FollowMoved(TableState* table);
  void TakeEnded(TableState* table, std::vector<Entry*>* entries);
  void LeaveOldLanes();
  static bool MovedSince(const Entry& entry);  // since it was posted
  // For an answered push or end-step: requeues the parts that have moved since it was posted.
  // Returns the rest; null: there is none.
  Entry* ResendMoved(Entry* entry);
  // The first entry that may be posted: none of its parts is away.
  Entry* FrontOf(TableLane* lane);

  // ---- memory of devices (journal_device.cc) ----
  // Null: host memory.
  DeviceStaging* StagingFor(const rdma::MemoryBlock& block);
  void CopyAhead(Stream* stream, TableLane* lane);
  bool StartCopy(Stream* stream, Entry* entry);
  // Transfer path of a chunk that is to be posted.
  enum class Way : uint8_t {
    kDirect,  // like host memory
    kStaged,
    kLater,  // the caller's enqueued work is not done
    kEnded,  // its operation has ended
  };
  // Whether the lane can access its memory directly, and there is no reason for doubt.
  bool GoesDirect(const Stream& stream, const Entry& entry) const;
  Way WayOf(Stream* stream, Entry* entry);
  void EndWith(Stream* stream, Entry* entry, const absl::Status& status);
  bool OldestToCopy(const Entry& entry) const;
  bool TakeBack(const Entry& entry);  // frees a buffer for this push
  void OnCopied(uint64_t cookie, const absl::Status& status);
  void Land(Entry* entry);  // copies an answered pull to the device
  // For a push whose call has ended: moves the data owed to the server to another entry.
  Entry* LeaveToCopy(Entry* entry);
  void DropCopies(Stream* stream);  // those that wait for a dead lane
  bool CopiesUse(uint64_t block_id) const;
  bool RunDevices(int64_t now);

  // ---- rails (journal_rails.cc) ----
  static Stream* Pinned(const PartState& part);
  static void Place(TableState* table, PartState* part, Stream* stream);
  static void CountMoving(TableState* table);
  void RailsChanged();                   // pins have changed: parts may have to move
  void Spread(const TableState& table);  // a new table, whose parts load the rails
  bool RunMoves();                       // moves the parts that can move
  void LeaveRail(Stream* stream);        // its lane is dead
  // Whether the entry must wait until one of its parts has changed rails.
  bool Draining(const Entry& entry) const;
  // For a push or end-step: +1 after posting, -1 after its reply or after its lane is dead.
  void CountOut(const Entry& entry, int change);
  // A posted record loads the rail of its partitions.
  static void CountLoad(const Stream& stream, const Entry& entry);

  // ---- norms over several chunks (journal_norms.cc) ----
  // Starts, continues and ends the first phases of steps, as far as the known state allows.
  void RunNorms();
  static void FollowTables(NormGroup* group, const std::vector<TableState*>& tables);
  void RunNormGroup(NormGroup* group, const std::vector<TableState*>& tables);
  void FindNormGroups();
  bool HasNorms(const v1::Table& table) const;
  void FollowNormTables(const ViewDifference& what);
  std::vector<TableState*> NormTables(const NormGroup& group);
  bool MayStart(const NormGroup& group, const std::vector<TableState*>& tables,
                uint64_t* step) const;
  void EndNormStep(NormGroup* group, bool over);
  // All servers have the totals, but the commit is not known: a server that takes over needs them.
  static bool KeepsTotals(const NormStep& step);
  void RestartNorms(const TableState& table);  // of parts that have just moved
  void IssueNorms(NormStep* step);
  void EnqueueNorms(Entry* entry);
  NormStep* NormStepOf(const Entry& entry) const;
  void ReturnNorms(Entry* entry);  // other entries handle its parts; frees it
  bool PumpNorms(Stream* stream);
  void NormGroups(const Entry& entry);  // writes groups_
  bool PostNorms(Stream* stream, Entry* entry);
  bool PostTotals(Stream* stream, Entry* entry);
  void OnNormsAnswer(Stream* stream, Entry* entry, const Reply& reply);
  bool OnFatalNorms(Entry* entry, const Reply& reply);
  void OnTotalsAnswer(Stream* stream, Entry* entry, const Reply& reply);
  absl::Status WithNormHint(const Operation& operation, absl::Status status);

  // Handles a transport's temporary refusal: `entry`, which is queued on the stream, is retried
  // after a backoff. Its operation ends at its deadline with `status` as the reason. An error for
  // which retries cannot help (IsFinal()) ends the operation. Memory in registration (LaneMemory)
  // is waited for.
  static bool IsFinal(const absl::Status& status);
  void NotNow(Stream* stream, Entry* entry, const absl::Status& status);
  void Delay(Stream* stream, Entry* entry, const absl::Status& status);  // only the backoff
  bool HasShare(const Stream& stream, const Staging& buffers, uint32_t bytes);
  static bool IsNext(const Entry& entry);
  bool MayTake(const Entry& entry, const Staging& from, uint32_t bytes) const;
  void AwaitStaging(Stream* stream, Entry* entry, const Staging* from, uint32_t bytes);
  void StopAwaiting(Entry* entry);
  // False: no buffer is free now, or no memory is available now (NotNow()).
  bool TakeStaging(Stream* stream, Entry* entry, Staging* from, uint64_t bytes);

  // ---- posting (journal_post.cc) ----
  bool PumpStream(Stream* stream);
  bool PumpTable(Stream* stream, TableLane* lane);
  bool PumpPulls(Stream* stream);
  bool Gated(const Entry& entry) const;
  bool Post(Stream* stream, Entry* entry);
  std::optional<rdma::RemoteMemory> Refer(Stream* stream, const Entry& entry,
                                          const rdma::Segment& payload);
  bool PostPush(Stream* stream, Entry* entry);
  bool PostPull(Stream* stream, Entry* entry);
  bool PostGroups(Stream* stream, Entry* entry);
  static rdma::WorkerLane::Reserve ReserveOf(const Stream& stream, const Entry& entry, bool oldest);
  static bool Oldest(const Stream& stream, const Entry& entry);
  bool Fits(Stream* stream, Entry* entry, uint32_t payload_bytes);
  bool Send(Stream* stream, Entry* entry, rdma::WorkerLane::Request* request);
  bool Pointless(Entry* entry) const;
  void Prune(Entry* entry) const;  // removes parts that are committed or lost
  bool ReopenLarger(Stream* stream, Entry* entry, uint32_t payload_bytes);

  // ---- rows (journal_rows.cc, journal_row_answers.cc) ----
  static uint64_t BytesInRecord(const TableState& table, const Staging& staging);
  static uint32_t RowsInRecord(const TableState& table, const Staging& staging);
  static uint32_t BagKeysInRecord(const TableState& table, const Staging& staging);
  // A call on rows: the type of its records, and the maximum number of keys of each.
  struct Cutting {
    Operation* operation;
    RecordType type;
    size_t offset;
    uint64_t min_version;
    uint32_t most;
  };
  void Cut(const Cutting& call, absl::Span<const KeyPlan::Range> ranges);
  Entry* NewRows(const Cutting& call);
  void EnqueueFilled(TableLane* lane);
  bool PostRowPush(Stream* stream, Entry* entry);
  bool PostLookup(Stream* stream, Entry* entry);  // for rows or bags
  bool PostIntent(Stream* stream, Entry* entry);
  bool PostScan(Stream* stream, Entry* entry);
  void NumberRows(Entry* entry) const;
  void OnRowPushAnswer(Entry* entry, const Reply& reply);
  void OnRowsSettled(Entry* entry, size_t group, const Reply& reply);
  void SettleRefused(const Entry& entry, size_t group);
  void EndRefused(Entry* entry, size_t groups, bool late);
  // The worst status of all groups' replies: final ones before retryable ones; *part is its part.
  static ReplyStatus WorstOf(const Entry& entry, const Reply& reply, uint32_t* part);
  void OnLookupAnswer(Stream* stream, Entry* entry, const Reply& reply);
  void OnIntentAnswer(Stream* stream, Entry* entry, const Reply& reply);
  void OnScanAnswer(Stream* stream, Entry* entry, const Reply& reply);

  // ---- answers (journal_answers.cc) ----
  void OnPushAnswer(Entry* entry, ReplyStatus status, const Reply& reply);
  void OnPullAnswer(Stream* stream, Entry* entry, ReplyStatus status, const Reply& reply);
  void OnEndAnswer(Entry* entry, const Reply& reply);
  void OnAwaitAnswer(Entry* entry, const Reply& reply);
  // Handles refusals that end more than this record: kExpired, kUnknownTable, kDataLoss. False:
  // none of these. The entry stays, without a live operation.
  bool OnFatal(Entry* entry, uint32_t part, ReplyStatus status);
  static bool Accepted(ReplyStatus status);
  static bool Retryable(ReplyStatus status);  // another attempt may succeed
  void Refuse(Entry* entry, ReplyStatus status);
  static bool IsNorms(const Entry& entry) {
    return entry.type == RecordType::kNorms || entry.type == RecordType::kTotals;
  }
  // Status of group i of a reply to `entry`.
  static ReplyStatus GroupStatus(const Entry& entry, const Reply& reply, size_t i);
  void SendEmpty(Entry* entry, ReplyStatus status);
  void Retry(Entry* entry, ReplyStatus status);
  void RetryPull(Stream* stream, Entry* entry, ReplyStatus status);
  void Settled(Entry* entry);  // frees it and decrements its operation's count
  void MaybeDone(Operation* operation);
  void Learned(TableState* table, uint32_t part, bool advanced);
  void Notify(std::vector<Waiter>* waiters, uint64_t committed);

  // ---- ends and losses (journal_end.cc) ----
  void Lost(Entry* entry);
  void EndEntry(Entry* entry);
  void DropQueued(TableState* table);
  void Uncount(Entry* entry);
  // Whether the caller no longer waits for the entry, while it still has data to send.
  static bool Over(const Entry& entry);
  void MakeEmpty(Entry* entry);
  void DropTable(TableState* table, const absl::Status& status);
  // Releases tables that were dropped and are no longer referenced.
  void ForgetDropped();
  bool FollowView(TableState* table);
  bool Refers(const TableState& table) const;
  void LosePart(TableState* table, uint32_t part);
  void MarkLost(TableState* table);  // according to the view
  bool Touches(const Operation& operation, uint32_t part) const;

  Session* session_;
  Operations* operations_;
  Staging* staging_;
  Staging* packing_;
  const Clock* clock_;
  Random* random_;
  const bool direct_only_;
  LaneSet* lanes_ = nullptr;

  Pool<Entry> entries_;
  std::map<uint32_t, std::unique_ptr<TableState>> tables_;
  TableState* last_table_ = nullptr;
  std::vector<uint32_t> dropped_;  // of tables_, those that were dropped
  std::vector<Stream*> dirty_, pumping_;
  std::vector<std::unique_ptr<NormGroup>> norm_groups_;
  // By device; only a few.
  std::vector<std::unique_ptr<DeviceStaging>> devices_;
  Staging norm_staging_{4 << 20};  // separate: pulls that wait for a step must not take the last
                                   // buffer
  std::vector<Entry*> awaits_staging_;  // few: one for each lane and table
  size_t lanes_pulling_ = 0;            // lanes with waiting pulls in this Pump(); 0: not counted
  bool norms_dirty_ = false;            // RunNorms() may have something to do
  bool moves_dirty_ = false;            // RunMoves() may
  uint64_t norm_steps_ = 0;
  bool norm_groups_stale_ = true;   // norm_groups_ do not reflect the view
  std::set<uint32_t> norm_tables_;  // ids of tables whose steps need norms, as in norm_groups_
  bool closed_ = false;             // EndAll() was called: no record is resent
  uint64_t order_ = 0;
  int64_t timer_ = kNever;  // not later than the next retry
  int64_t now_ = 0;
  uint64_t turn_bytes_ = 0;
  JournalCounters counters_;
  std::vector<Group> groups_ = std::vector<Group>(kMaxGroups);
  std::vector<ReplyStatus> statuses_ = std::vector<ReplyStatus>(kMaxGroups);
  KeyScratch key_scratch_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_JOURNAL_H_
