// The journal: every record from the moment it is needed until it is settled.
//
// Calls on rows of an embedding table are cut, when they are made, into records of groups: one
// group for each partition (key_plan.h says which keys it has), one record a lane, more when groups
// or bytes do not fit. Their numbers are packed into, and looked up by way of, staging, which is
// taken when a record is posted and given back when it is answered or its lane is dead: so a push
// that is sent again is packed again, without keys when its call is over. Pushes have staging of
// their own, because lookups hold theirs while the server parks them. Lookups of bags are lookups
// whose answers are kept until the last one is there (bag_call.h).
//
// Pushes and end-steps of a table go through one queue per lane (TableLane), in order. sync: a
// push of step t waits in it until step t - 1 of its chunk is known committed, an end-step until
// step t - 1 of its partitions is. Pulls and awaits have a queue per lane and may use half of its
// operations, because the server may park them (record.h) and pushes must always get through. Norms
// and totals of steps that commit in two phases have one, too: without them nothing commits, so a
// server that may park no more of them says so at once (kTooEarly) and they are sent again.
//
// A chunk in memory of a device goes as the host's does where the lane's transport reaches it
// (GPUDirect), once what its caller had enqueued is done. Elsewhere it is copied to staging of its
// own before its record is posted, ahead of its turn while there is room, and from staging once its
// pull is answered (device_staging.h). Of the buffers for pushes the last one is left to the push
// made first of those not copied, for the same reason for which lanes leave it a slot
// (ReserveOf()). While such a copy goes on, the entry stays, with the caller's memory, even when
// its call is over.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. Those of client_core.h; this is where they are kept.
//  2. async: sequences are taken at the first posting and posted in order; what comes back is
//     posted again in order, after everything posted behind it is answered (TableLane::reordering).
//  3. An operation that ends takes its unposted records with it. Posted pushes stay until settled,
//     as empty records once their lane was lost; posted pulls until answered or their lane is dead.
//  4. A group of rows keeps its sequence (sync: its index) however its record is cut again.
//  5. Pushes and end-steps of a part that are posted and unanswered are all on one lane: it changes
//     rails when none is, or when that lane is dead. Pulls, awaits and norms need no order and stay
//     where they are.
//  6. sync, of a partition that has copies (or shall have): a push that is answered is kept, with
//     its buffer, until its step is known committed; when the partition has another primary or
//     epoch, it is sent again, before the end-steps that were accepted. One that contributes zero,
//     or whose operation is over, is kept without its buffer, as an empty record.
//  7. Records of a partition are posted to its new primary only when none of its pushes and
//     end-steps is out on the lane to the old one, which is closed as soon as the view names
//     another: a server that hangs would never answer.
#ifndef VERBENA_CLIENT_CORE_JOURNAL_H_
#define VERBENA_CLIENT_CORE_JOURNAL_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
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
  // `staging`: of what comes; `packing`: of rows that go.
  // `direct_only`: calls on memory of devices end where the transport does not reach it.
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

  // ---- starting (core_calls.cc has checked the arguments) ----
  // nullptr: not in the view, or dropped.
  TableState* FindTable(uint32_t id);
  // A part of [first_chunk, +chunks) that is lost: DATA_LOSS.
  absl::Status CheckLost(const TableState& table, uint32_t first_chunk, uint32_t chunks) const;
  // Chunks [first, +count), lying one after the other from `offset` of operation->blocks[0].
  void AddPushes(Operation* operation, uint32_t first, uint32_t count, size_t offset);
  // The same for pulls into operation->blocks[1].
  void AddPulls(Operation* operation, uint32_t first, uint32_t count, size_t offset,
                uint64_t min_version);
  // Pairs: each chunk's pull follows its push.
  void AddPushPulls(Operation* operation, uint32_t first, uint32_t count, size_t push_offset,
                    size_t pull_offset, uint64_t min_version);
  // Ends the open step of `table`. async: `operation` (if any) waits for its records. sync:
  // `await` says whether the commit is asked for.
  void AddEndStep(TableState* table, Operation* operation, bool await);
  // sync: the operation also waits until these chunks (all of the table: count 0) are committed.
  void WaitForCommit(Operation* operation, uint32_t first, uint32_t count, uint64_t version);
  // Of rows: what operation->plan has, from or to `offset` of its block.
  absl::Status CheckRowsLost(const TableState& table,
                             absl::Span<const KeyPlan::Range> ranges) const;
  void AddRowPushes(Operation* operation, size_t offset);
  void AddLookups(Operation* operation, size_t offset, uint64_t min_version);
  // Of sums of rows, to operation->sums: what operation->bags has, built within these limits.
  BagCall::Limits BagLimits(const TableState& table) const;
  void AddBagLookups(Operation* operation, uint64_t min_version);
  void AddIntents(Operation* operation);
  void WaitForRows(Operation* operation, uint64_t version);
  // One record into operation->scan.
  void AddScan(Operation* operation, uint32_t part, uint64_t cursor);
  KeyScratch* key_scratch() { return &key_scratch_; }
  // FAILED_PRECONDITION: the open step of `table` cannot end, because a table that its norm spans
  // is at another step.
  absl::Status CheckNormStep(absl::string_view call, const TableState& table);
  // After the last of the above.
  void Started(Operation* operation) { MaybeDone(operation); }

  // ---- ending ----
  void End(Operation* operation, absl::Status status);
  void EndAll(const absl::Status& status);
  void ReleaseBlock(uint64_t block_id);
  bool InUse(uint64_t block_id) const;

  // ---- progress ----
  void OnView();
  // Memory that was being registered is ready, or refused.
  void OnMemoryReady();
  bool Pump();
  bool RunTimers(int64_t now);
  int64_t NextTimerNanos() const;
  bool busy() const { return entries_.in_use() != 0; }
  // There is nothing to do for `operation`, the only live one, before each lane's last answer: a
  // few records are in flight, all of this operation, none waits to be posted, none follows from an
  // answer. (With many, answers that came first are handled meanwhile. A record of an operation
  // that has ended may be answered much later than this one's: then the last answer comes too
  // late.)
  bool OnlyAnswersLeft(const Operation* operation) const;
  const JournalCounters& counters() const { return counters_; }
  size_t tables() const { return tables_.size(); }
  const Session& session() const { return *session_; }

  // A turn is full when so many bytes were decoded or copied in it: a few milliseconds' work.
  static constexpr uint64_t kTurnBytes = 4 << 20;
  void BeginTurn() override { turn_bytes_ = 0; }
  bool TurnIsFull() const override { return turn_bytes_ >= kTurnBytes; }
  // It has taken much longer than a poll.
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
  Entry* NewRest(const Entry& entry);  // of the same record, without groups
  // Splits off the groups whose part is not `same`, if any.
  Entry* SplitOff(Entry* entry, absl::FunctionRef<bool(const PartState&)> same);
  void Enqueue(Entry* entry);  // by its order, on the lane(s) its parts have now
  void EnqueueOn(TableLane* lane, Entry* entry);
  void EnqueuePull(Entry* entry, bool front);  // on the stream(s) its parts have now
  void EnqueuePullOn(Stream* stream, Entry* entry, bool front);
  void AddAwaits(TableState* table, uint64_t version);
  void AddAwait(TableState* table, uint64_t version, Stream* stream,
                const std::vector<uint32_t>& parts);
  void Unqueue(Entry* entry);  // from whichever queue it is in
  void Free(Entry* entry);
  void Detach(Entry* entry);  // from its operation
  void ReleaseBuffer(Entry* entry);
  Staging* StagingOf(const Entry& entry);
  void GiveStaging(Entry* entry);
  void TouchStalled();
  // `more`: not in any queue; goes with what is.
  void Reroute(TableState* table, std::vector<Entry*> more = {});
  void Touch(Stream* stream);
  void NoteTimer(int64_t at);

  // ---- kept for a server that takes over (journal_kept.cc) ----
  // A push of that step that was answered may be needed again.
  bool Keeps(const TableState& table, uint32_t chunk, uint64_t step) const;
  // Instead of Settled(). `zero`: it contributes nothing.
  void Keep(Entry* entry, bool zero);
  void KeepRows(const Entry& entry, size_t group);  // one group of it
  static EntryQueue* KeptOf(const Entry& entry);
  void TakeKept(TableState* table, uint32_t part, std::vector<Entry*>* entries);
  void DropKept(TableState* table, uint32_t part);
  // What an answer says of commits.
  void LearnChunk(TableState* table, uint32_t chunk, uint64_t version);
  void LearnPart(TableState* table, uint32_t part, uint64_t version);
  void ReleaseKept(TableState* table, uint32_t chunk);

  // ---- partitions that have another primary (journal_moved.cc) ----
  // Where each part is, according to the view. False: all are where they were, at the same epoch.
  bool Route(TableState* table);
  void FollowMoved(TableState* table);
  void TakeEnded(TableState* table, std::vector<Entry*>* entries);
  void LeaveOldLanes();
  static bool MovedSince(const Entry& entry);  // it was posted
  // Of an answered push or end-step: what has moved since it was posted is queued again. Returns
  // the rest; nullptr: there is none.
  Entry* ResendMoved(Entry* entry);
  // The first that may go: it is not of parts that are away.
  Entry* FrontOf(TableLane* lane);

  // ---- memory of devices (journal_device.cc) ----
  // Null: the host's.
  DeviceStaging* StagingFor(const rdma::MemoryBlock& block);
  void CopyAhead(Stream* stream, TableLane* lane);
  bool StartCopy(Stream* stream, Entry* entry);
  // How a chunk that is to be posted goes.
  enum class Way : uint8_t {
    kDirect,  // as the host's memory does
    kStaged,
    kLater,  // what the caller had enqueued is not done
    kEnded,  // its operation
  };
  // Whether the lane would reach its memory, and there is no reason to doubt that.
  bool GoesDirect(const Stream& stream, const Entry& entry) const;
  Way WayOf(Stream* stream, Entry* entry);
  void EndWith(Stream* stream, Entry* entry, const absl::Status& status);
  bool OldestToCopy(const Entry& entry) const;
  bool TakeBack(const Entry& entry);  // a buffer, for this push
  void OnCopied(uint64_t cookie, const absl::Status& status);
  void Land(Entry* entry);  // an answered pull
  // Of a push whose call is over: what it owes to the server, as another entry.
  Entry* LeaveToCopy(Entry* entry);
  void DropCopies(Stream* stream);  // of what waits for a lane that is dead
  bool CopiesUse(uint64_t block_id) const;
  bool RunDevices(int64_t now);

  // ---- rails (journal_rails.cc) ----
  static Stream* Pinned(const PartState& part);
  static void Place(TableState* table, PartState* part, Stream* stream);
  static void CountMoving(TableState* table);
  void RailsChanged();                   // pins did: parts may have to move
  void Spread(const TableState& table);  // a new one, whose parts load the rails
  bool RunMoves();                       // those that may
  void LeaveRail(Stream* stream);        // its lane is dead
  // It must wait until a part of it has changed rails.
  bool Draining(const Entry& entry) const;
  // Of a push or end-step: +1 once it is posted, -1 once it is answered or its lane is dead.
  void CountOut(const Entry& entry, int change);
  // What is posted loads its partitions' rail.
  static void CountLoad(const Stream& stream, const Entry& entry);

  // ---- norms over several chunks (journal_norms.cc) ----
  // Starts, goes on with and ends the first phases of steps, as far as what is known allows.
  void RunNorms();
  static void FollowTables(NormGroup* group, const std::vector<TableState*>& tables);
  void RunNormGroup(NormGroup* group, const std::vector<TableState*>& tables);
  void FindNormGroups();
  std::vector<TableState*> NormTables(const NormGroup& group);
  bool MayStart(const NormGroup& group, const std::vector<TableState*>& tables,
                uint64_t* step) const;
  void EndNormStep(NormGroup* group, bool over);
  // All are told, but the step is not known committed: a server that takes over needs the same.
  static bool KeepsTotals(const NormStep& step);
  void RestartNorms(const TableState& table);  // of parts that have just moved
  void IssueNorms(NormStep* step);
  void EnqueueNorms(Entry* entry);
  NormStep* NormStepOf(const Entry& entry) const;
  void ReturnNorms(Entry* entry);  // its parts are to be asked for, or told, by another; frees it
  bool PumpNorms(Stream* stream);
  void NormGroups(const Entry& entry);  // into groups_
  bool PostNorms(Stream* stream, Entry* entry);
  bool PostTotals(Stream* stream, Entry* entry);
  void OnNormsAnswer(Stream* stream, Entry* entry, const Reply& reply);
  bool OnFatalNorms(Entry* entry, const Reply& reply);
  void OnTotalsAnswer(Stream* stream, Entry* entry, const Reply& reply);
  absl::Status WithNormHint(const Operation& operation, absl::Status status);

  // ---- memory for records (journal_memory.cc) ----
  // A transport's refusal is "not now": `entry`, which is queued on the stream, is tried again
  // after a backoff, and its operation ends at its deadline with `status` as the reason. One that
  // no other attempt can pass (IsFinal()) ends the operation. Memory that is being registered
  // (LaneMemory) is waited for.
  static bool IsFinal(const absl::Status& status);
  void NotNow(Stream* stream, Entry* entry, const absl::Status& status);
  void Delay(Stream* stream, Entry* entry, const absl::Status& status);  // the backoff alone
  bool HasShare(const Stream& stream, const Staging& buffers, uint32_t bytes);
  static bool IsNext(const Entry& entry);
  bool MayTake(const Entry& entry, const Staging& from, uint32_t bytes) const;
  void AwaitStaging(Stream* stream, Entry* entry, const Staging* from, uint32_t bytes);
  void StopAwaiting(Entry* entry);
  // False: none is free now, or there is no memory for it now (NotNow()).
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
  void Prune(Entry* entry) const;  // parts that are committed or lost
  bool ReopenLarger(Stream* stream, Entry* entry, uint32_t payload_bytes);

  // ---- rows (journal_rows.cc, journal_row_answers.cc) ----
  static uint64_t BytesInRecord(const TableState& table, const Staging& staging);
  static uint32_t RowsInRecord(const TableState& table, const Staging& staging);
  static uint32_t BagKeysInRecord(const TableState& table, const Staging& staging);
  // Of a call on rows: what its records are, and how many keys each may have.
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
  bool PostLookup(Stream* stream, Entry* entry);  // of rows, or of bags
  bool PostIntent(Stream* stream, Entry* entry);
  bool PostScan(Stream* stream, Entry* entry);
  void NumberRows(Entry* entry) const;
  void OnRowPushAnswer(Entry* entry, const Reply& reply);
  void OnRowsSettled(Entry* entry, size_t group, const Reply& reply);
  void EndRefused(Entry* entry, size_t groups, bool late);
  // Of all groups' answers: what is final before what may pass; *part is whose it is.
  static ReplyStatus WorstOf(const Entry& entry, const Reply& reply, uint32_t* part);
  void OnLookupAnswer(Stream* stream, Entry* entry, const Reply& reply);
  void OnIntentAnswer(Stream* stream, Entry* entry, const Reply& reply);
  void OnScanAnswer(Stream* stream, Entry* entry, const Reply& reply);

  // ---- answers (journal_answers.cc) ----
  void OnPushAnswer(Entry* entry, ReplyStatus status, const Reply& reply);
  void OnPullAnswer(Stream* stream, Entry* entry, ReplyStatus status, const Reply& reply);
  void OnEndAnswer(Entry* entry, const Reply& reply);
  void OnAwaitAnswer(Entry* entry, const Reply& reply);
  // What ends more than this record: kExpired, kUnknownTable, kDataLoss. False: none of these. The
  // entry stays, without an operation that is live.
  bool OnFatal(Entry* entry, uint32_t part, ReplyStatus status);
  static bool Accepted(ReplyStatus status);
  static bool Retryable(ReplyStatus status);  // another attempt may not meet it
  void Refuse(Entry* entry, ReplyStatus status);
  static bool IsNorms(const Entry& entry) {
    return entry.type == RecordType::kNorms || entry.type == RecordType::kTotals;
  }
  // Status of group i of a reply to `entry`.
  static ReplyStatus GroupStatus(const Entry& entry, const Reply& reply, size_t i);
  void Retry(Entry* entry, ReplyStatus status);
  void RetryPull(Stream* stream, Entry* entry, ReplyStatus status);
  void Settled(Entry* entry);  // frees it and counts it off its operation
  void MaybeDone(Operation* operation);
  void Learned(TableState* table, uint32_t part, bool advanced);
  void Notify(std::vector<Waiter>* waiters, uint64_t committed);

  // ---- ends and losses (journal_end.cc) ----
  void Lost(Entry* entry);
  void EndEntry(Entry* entry);
  void DropQueued(TableState* table);
  void Uncount(Entry* entry);
  // Nobody waits for it, and it still has what it would send.
  static bool Over(const Entry& entry);
  void MakeEmpty(Entry* entry);
  void DropTable(TableState* table, const absl::Status& status);
  // Tables that were dropped and that nothing refers to any more.
  void ForgetDropped();
  bool Refers(const TableState& table) const;
  void LosePart(TableState* table, uint32_t part);
  void MarkLost(TableState* table);  // as the view says
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
  std::vector<Stream*> dirty_, pumping_;
  std::vector<std::unique_ptr<NormGroup>> norm_groups_;
  // By device; a handful at most.
  std::vector<std::unique_ptr<DeviceStaging>> devices_;
  Staging norm_staging_{4 << 20};  // its own: pulls that wait for a step must not take the last
  std::vector<Entry*> awaits_staging_;  // a handful: one for each lane and table
  size_t lanes_pulling_ = 0;  // lanes with pulls that wait, in this Pump(); 0: not counted
  bool norms_dirty_ = false;  // RunNorms() may have something to do
  bool moves_dirty_ = false;  // RunMoves() may
  uint64_t norm_steps_ = 0;
  uint64_t norm_revision_ = 0;  // of the view that norm_groups_ follow
  bool closed_ = false;         // EndAll() was called: nothing is sent again
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
