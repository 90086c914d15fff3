// A client core against a cluster of scripted fakes: a coordinator that answers from a view the
// test edits, and servers that are ShardLanes over sim with a log and a very small memory.
//
// The fake server applies the rules a client must keep, in the simplest form: async sequences only
// as last + 1; a sync step of a partition commits when this one worker ends it. Sync pushes are
// identified by chunk or index, and an end-step must count them. Payloads are decoded by the
// record's dtype: the fake knows the dtype of no table.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLIENT_FAKE_CLUSTER_H_
#define VERBENA_TESTS_CLIENT_FAKE_CLUSTER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/core/client_core.h"
#include "proto/control/control_channel.h"
#include "rdma/lane/shard_lane.h"
#include "rdma/sim/sim_network.h"
#include "tests/client/fake_device.h"
#include "tests/rdma/forwarding_endpoint.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {

inline constexpr int64_t kMilli = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

// Answers calls by method name; a call that nobody answers ends at its timeout.
class FakeControl final : public ControlChannel {
 public:
  using Message = google::protobuf::Message;
  // nullopt: no answer (yet: it is asked again on every RunOnce()).
  using Handler = std::function<std::optional<absl::Status>(
      const std::string& address, const std::string& request, Message* response, int64_t age_ns)>;
  explicit FakeControl(const Clock* clock) : clock_(clock) {}
  void Serve(const std::string& method, Handler handler) { handlers_[method] = std::move(handler); }
  int calls(const std::string& method) const {
    const auto it = counts_.find(method);
    return it == counts_.end() ? 0 : it->second;
  }

  void Unary(const std::string& address, const std::string& method, const Message& request,
             std::shared_ptr<Message> response, absl::Duration timeout, Done done) override;
  bool RunOnce() override;
  int wake_fd() const override { return -1; }

 private:
  struct Call {
    std::string address, method, request;
    std::shared_ptr<Message> response;
    int64_t started, deadline;
    Done done;
  };
  const Clock* clock_;
  std::map<std::string, Handler> handlers_;
  std::map<std::string, int> counts_;
  std::deque<std::unique_ptr<Call>> calls_;
};

// One group of a record, as a server received it.
struct Seen {
  RecordType type;
  uint32_t table, partition, chunk;
  uint64_t epoch, sequence;
  uint32_t count;
  uint64_t min_version;
  float value;  // of the payload's first element, decoded by the record's dtype
  uint32_t lane;
  int64_t at;
  std::vector<uint64_t> keys;  // of the group, of a record of rows
  uint32_t bags = 0;
  uint32_t index() const { return chunk; }  // of a sync push of rows
};

class FakeServer {
 public:
  FakeServer(std::unique_ptr<rdma::Endpoint> endpoint, const Clock* clock, uint64_t incarnation,
             std::string host);

  absl::StatusOr<v1::OpenLaneResponse> OpenLane(const v1::OpenLaneRequest& request);
  bool RunOnce();
  void CloseLanes(const std::string& why);

  // ---- the script ----
  std::function<std::optional<ReplyStatus>(const Seen&)> refuse;  // first group decides
  // The same for one group of a push of rows, or of a prefetch.
  std::function<std::optional<ReplyStatus>(const Seen&)> refuse_group;
  uint32_t reply_detail = 0;          // of pushes of rows
  std::map<uint32_t, uint32_t> dims;  // of embedding tables
  bool silent = false;                // receives, answers nothing; answers later when false again
  bool hold_commits = false;          // ended steps do not commit until false
  bool hold_pushes = false;           // pushes are not answered while true
  std::function<bool(const Seen&)> hold;  // nor records whose first group it is true of
  // When set: groups of partitions that are another's in it, or at another epoch, are refused.
  const v1::ClusterView* knows = nullptr;
  std::set<uint32_t> clipped;  // tables whose steps commit when they receive the totals
  absl::Status open_status;    // of OpenLane
  v1::OpenLaneRequest last_open;
  uint64_t reply_version = 0;  // of refusals
  std::optional<uint64_t> reply_pull_version;
  rdma::LaneConfig config;
  uint32_t protocol = kProtocolVersion;  // of its lanes

  // ---- observed by the server ----
  std::vector<Seen> seen;
  std::vector<Seen> Of(RecordType type) const;
  // Sum of pushed first elements by (table, chunk): each applied once.
  std::map<std::pair<uint32_t, uint32_t>, float> applied;
  // The last payload of each (table, chunk), and the payload for pulls of it where the test sets
  // one.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> pushed, stored;
  // The sum of the pushed rows for each key of a table, each group applied once.
  std::map<uint32_t, std::map<uint64_t, std::vector<float>>> rows;
  uint64_t CommittedOf(uint32_t table, uint32_t partition) const;
  // Changes of the optimizer that count: partition, first value, and the step for which they are.
  struct Changed {
    uint32_t table, partition;
    NamedValue value;
    uint64_t sequence;
    bool operator==(const Changed& other) const {
      return table == other.table && partition == other.partition && sequence == other.sequence &&
             value.value == other.value.value;
    }
  };
  std::vector<Changed> changed;
  // By partition: the totals that came, oldest first.
  std::map<uint32_t, std::vector<double>> totals;
  // Takes over the partition as a replica of `from`: everything but the open step of sync tables.
  void TakeOver(const FakeServer& from, uint32_t partition);
  // The replica has received the async pushes up to that sequence.
  void Settle(uint32_t table, uint32_t partition, uint64_t sequence) {
    last_[{table, partition}] = sequence;
  }
  int lanes_opened = 0;
  const std::string& host() const { return host_; }
  uint64_t incarnation() const { return incarnation_; }
  std::string address() const { return host_ + ":1"; }

 private:
  struct Held {
    uint32_t lane;
    rdma::ShardLane::Arrival arrival;
    std::vector<std::byte> payload;
    bool slot_returned = false;
  };
  // False: it must wait.
  bool Handle(Held* held);
  // For tables of rows (fake_rows.cc).
  bool HandleRows(Held* held);
  bool HandleLookup(Held* held);
  bool HandleBags(Held* held);
  bool HandlePrefetch(Held* held);
  const float* RowOf(uint32_t table, uint64_t key);
  bool HandleScan(Held* held);
  bool HandleSetOptimizer(Held* held);
  // For tables in `clipped` (fake_norms.cc).
  bool HandleNorms(Held* held);
  bool HandleTotals(Held* held);
  bool Mine(const Group& group) const;
  bool RefuseStrangers(Held* held);
  void Forget(uint32_t partition);
  void DropOpen(uint32_t partition);
  ReplyStatus ApplyRows(const Record& record, size_t group, const uint64_t* keys, const float* rows,
                        uint64_t* version);
  // Without keys.
  Seen SeenOf(const Held& held, const Group& group, float value) const;
  bool Refuse(Held* held);
  std::optional<ReplyStatus> RefuseGroup(const Held& held, const Group& group) const;
  static float FirstOf(const Held& held);
  // The payload of a pull's reply.
  std::vector<std::byte> Parameters(const Record& record);
  rdma::ShardLane::Answer AnswerTo(const Held& held) const;
  // False, and the slot is returned: the version is not there yet.
  bool AtVersion(Held* held, uint64_t* version);
  void Write(Held* held, const std::shared_ptr<rdma::MemoryBlock>& block,
             const rdma::ShardLane::Answer& answer);
  void Note(const Held& held);
  ReplyStatus Apply(const Record& record, size_t group, float value, uint64_t* version);
  void Accept(const rdma::ConnectionEvent& event);

  std::unique_ptr<rdma::Endpoint> endpoint_;
  const Clock* clock_;
  uint64_t incarnation_;
  std::string host_, lane_address_;
  uint32_t next_lane_ = 1;
  std::map<uint32_t, rdma::ShardLane::Params> granted_;
  std::map<uint32_t, std::unique_ptr<rdma::ShardLane>> lanes_;
  std::map<rdma::ConnectionId, uint32_t> by_connection_;
  std::deque<Held> held_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> last_, ended_;
  // sync: chunks, or indices of the pushes of rows, of a step, by (table, partition, step).
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, std::set<uint32_t>> indices_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint64_t>> made_;  // keys, as they came
  // Contributions to the open step by (table, partition); and the partition of a (table, chunk).
  struct Open {
    std::vector<std::pair<uint32_t, float>> chunks;
    std::vector<std::pair<uint64_t, std::vector<float>>> rows;
  };
  std::map<std::pair<uint32_t, uint32_t>, Open> open_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> homes_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> measured_;  // steps, of clipped tables
  std::vector<std::shared_ptr<rdma::MemoryBlock>> outgoing_;
};

class FakeCluster {
 public:
  struct Options {
    int servers = 1;
    uint32_t partitions = 4;
    rdma::SimFaults faults;
    uint32_t expected_workers = 1;
    size_t staging_bytes = 1 << 20;
    bool shm = false;  // lanes over shared memory, on real time
    bool observer = false;
    bool reaches_device = false;  // sim reads and writes the device's memory itself
    bool direct_only = false;
    uint32_t replicas = 1;          // more: server 0 has all partitions, and the others copies
    bool broken_transport = false;  // the worker offers "broken", too, which never connects
  };
  explicit FakeCluster(const Options& options);
  FakeCluster() : FakeCluster(Options()) {}

  // A table of `chunks` chunks of `chunk_bytes`; its id.
  uint32_t AddTable(v1::Consistency consistency, uint32_t chunks, uint32_t chunk_bytes = 4096,
                    const std::string& name = "weights");
  // A table of `elements` numbers; the specification has no name and no shape.
  uint32_t AddTyped(v1::TableSpec spec, uint64_t elements, const std::string& name = "weights");
  uint32_t AddEmbedding(v1::Consistency consistency, uint32_t dim, uint32_t chunk_bytes = 4096,
                        const std::string& name = "items");
  // A table of the specification, which has a dim and may lack a name.
  uint32_t AddRows(v1::TableSpec spec);
  void Join();
  // Publishes the changed `view`.
  void Publish();
  // Changes `view` only: a new epoch with that server as the primary, which takes over the
  // replica's state.
  void Move(uint32_t partition, size_t server);

  bool RunUntil(const std::function<bool()>& done, int64_t at_most_ns = 60 * kSecond);
  void RunFor(int64_t ns) {
    RunUntil([] { return false; }, ns);
  }
  int64_t now() const { return clock->NowNanos(); }

  // An operation in progress, and how it ended.
  struct Call {
    client::OperationId id = 0;
    bool done = false;
    absl::Status status;
    int64_t ended_at = 0;
  };
  using CallPtr = std::shared_ptr<Call>;
  CallPtr Push(uint32_t table, client::ClientCore::Slice slice, int64_t timeout_ns = 30 * kSecond);
  CallPtr Assign(uint32_t table, client::ClientCore::Slice slice,
                 int64_t timeout_ns = 30 * kSecond);
  CallPtr Pull(uint32_t table, client::ClientCore::Slice slice,
               std::optional<uint64_t> min_version = {}, int64_t timeout_ns = 30 * kSecond);
  // As an observer, also from followers.
  CallPtr PullAny(uint32_t table, client::ClientCore::Slice slice, uint32_t max_staleness_ms,
                  int64_t timeout_ns = 30 * kSecond);
  CallPtr PushPull(uint32_t table, client::ClientCore::Slice from, client::ClientCore::Slice to,
                   int64_t timeout_ns = 30 * kSecond);
  CallPtr EndStep(uint32_t table, int64_t timeout_ns = 30 * kSecond);
  CallPtr SetOptimizer(uint32_t table, std::shared_ptr<client::OptimizerUpdate> change,
                       int64_t timeout_ns = 30 * kSecond);
  CallPtr PushRows(uint32_t table, const std::vector<uint64_t>& keys,
                   client::ClientCore::Rows gradients, int64_t timeout_ns = 30 * kSecond);
  CallPtr Lookup(uint32_t table, const std::vector<uint64_t>& keys, client::ClientCore::Rows rows,
                 std::optional<uint64_t> min_version = {}, int64_t timeout_ns = 30 * kSecond);
  CallPtr LookupBags(uint32_t table, const client::BagKeys& bags, client::ClientCore::Rows sums,
                     std::optional<uint64_t> min_version = {}, int64_t timeout_ns = 30 * kSecond);
  CallPtr Prefetch(uint32_t table, const std::vector<uint64_t>& keys,
                   int64_t timeout_ns = 30 * kSecond);
  CallPtr Scan(uint32_t table, uint32_t partition, uint64_t cursor,
               std::shared_ptr<client::ScanResult> result, int64_t timeout_ns = 30 * kSecond);
  bool Wait(const CallPtr& call, int64_t at_most_ns = 60 * kSecond) {
    return RunUntil([&] { return call->done; }, at_most_ns);
  }
  // Memory for the whole table, filled with `value`; chunks may be cut from it.
  client::ClientCore::Slice Memory(uint32_t table, float value);
  // The same on `device`, ordered after the work on `stream`.
  client::ClientCore::Slice DeviceMemory(uint32_t table, float value, uintptr_t stream = 0);
  // The numbers in memory of a device.
  float* Numbers(const client::ClientCore::Slice& slice) {
    return reinterpret_cast<float*>(device->Bytes(slice.block->data() + slice.offset));
  }
  // Memory for `rows` rows of `dim`, filled with `value`.
  static client::ClientCore::Rows RowMemory(size_t rows, uint32_t dim, float value);
  static client::ClientCore::Slice Chunk(const client::ClientCore::Slice& whole, uint32_t chunk,
                                         uint32_t chunk_elements);

  rdma::SimNetwork network;
  MonotonicClock real_clock;
  const Clock* clock;
  FakeControl control;
  v1::ClusterView view;
  std::vector<std::unique_ptr<FakeServer>> servers;
  std::shared_ptr<FakeDevice> device;
  bool coordinator_answers = true;
  bool lease_ended = false;
  std::unique_ptr<rdma::ForwardingEndpoint> endpoint, broken;  // the worker's
  std::unique_ptr<client::ClientCore> core;

 private:
  std::unique_ptr<rdma::Endpoint> NewEndpoint(const std::string& host);
  CallPtr Track(
      const std::function<absl::StatusOr<client::OperationId>(client::ClientCore::Done)>& start);
  uint32_t Add(v1::TableSpec spec);
  Options options_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_FAKE_CLUSTER_H_
