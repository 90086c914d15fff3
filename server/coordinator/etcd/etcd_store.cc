#include "server/coordinator/etcd/etcd_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/coordinator/etcd/failpoints.h"

namespace verbena::server {
namespace {

constexpr uint32_t kFormat = 1;
constexpr int64_t kKeysInPage = 256;
// After so many compactions during one Load() etcd is compacted faster than it is read.
constexpr int kMostReads = 20;
// An operation's bytes beside its key and value.
constexpr size_t kOperationBytes = 32;

std::string RandomSaveId() {
  absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

std::string WithChecksum(const std::string& key, const std::string& content) {
  const uint64_t checksum = ChecksumOfEntry(key, content);
  std::string value(sizeof(checksum), '\0');
  std::memcpy(value.data(), &checksum, sizeof(checksum));
  return value + content;
}

// False: the value is not the one that was written under this key.
bool TakeChecksum(const std::string& key, const std::string& value, std::string* content) {
  uint64_t checksum = 0;
  if (value.size() < sizeof(checksum)) return false;
  std::memcpy(&checksum, value.data(), sizeof(checksum));
  *content = value.substr(sizeof(checksum));
  return checksum == ChecksumOfEntry(key, *content);
}

etcdserverpb::RequestOp Put(const std::string& key, std::string value) {
  etcdserverpb::RequestOp operation;
  operation.mutable_request_put()->set_key(key);
  operation.mutable_request_put()->set_value(std::move(value));
  return operation;
}

etcdserverpb::RequestOp RemoveAll(const std::string& prefix) {
  etcdserverpb::RequestOp operation;
  operation.mutable_request_delete_range()->set_key(prefix);
  operation.mutable_request_delete_range()->set_range_end(EndOfPrefix(prefix));
  return operation;
}

etcdserverpb::RequestOp ReadOne(const std::string& key) {
  etcdserverpb::RequestOp operation;
  operation.mutable_request_range()->set_key(key);
  return operation;
}

// The value of a key that was read; null: there is none.
const etcdserverpb::KeyValue* OneOf(const etcdserverpb::ResponseOp& response) {
  const auto& kvs = response.response_range().kvs();
  return kvs.empty() ? nullptr : &kvs[0];
}

size_t BytesOf(const etcdserverpb::RequestOp& operation) {
  return operation.ByteSizeLong() + kOperationBytes;
}

}  // namespace

EtcdStore::EtcdStore(EtcdClient* client, const Clock* clock, Leadership leadership,
                     EtcdLimits limits)
    : client_(client), clock_(clock), leadership_(std::move(leadership)), limits_(limits) {}
EtcdStore::~EtcdStore() = default;

std::string EtcdStore::StagedPrefix(const std::string& save_id) const {
  return absl::StrCat(Key("staged/"), save_id, "/");
}

absl::Duration EtcdStore::TimeLeft(int64_t began_ns) const {
  const int64_t until =
      std::min(began_ns + absl::ToInt64Nanoseconds(limits_.longest), leadership_.until_ns());
  return absl::Nanoseconds(std::max<int64_t>(until - clock_->NowNanos(), 0));
}

etcdserverpb::RequestOp EtcdStore::EntryOperation(const std::string& key,
                                                  const std::optional<std::string>& content) const {
  if (content) return Put(EntryKey(key), WithChecksum(key, *content));
  etcdserverpb::RequestOp operation;
  operation.mutable_request_delete_range()->set_key(EntryKey(key));
  return operation;
}

etcdserverpb::RequestOp EtcdStore::PutState(const stored::State& state) const {
  return Put(Key("state"), WithChecksum("state", state.SerializeAsString()));
}

absl::Status EtcdStore::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat("the coordinator's state in etcd below ",
                                          client_->options().prefix, " is damaged (", what,
                                          "): restore etcd from its newest snapshot, or name "
                                          "another --etcd-prefix to start a new and empty "
                                          "cluster, whose tables must be created again"));
}

absl::Status EtcdStore::EndLeadership(const absl::Status& why) {
  if (status_.ok()) status_ = why;
  return why;
}

absl::Status EtcdStore::Write(Operations operations, bool writes_state, const std::string& save_id,
                              int64_t began_ns) {
  if (!status_.ok()) return status_;
  etcdserverpb::TxnRequest request;
  if (!VERBENA_FAILPOINT(etcd, two_leaders_write)) {
    etcdserverpb::Compare* leader = request.add_compare();
    leader->set_target(etcdserverpb::Compare::CREATE);
    leader->set_key(Key("leader"));
    leader->set_create_revision(leadership_.create_revision);
    etcdserverpb::Compare* state = request.add_compare();
    state->set_target(etcdserverpb::Compare::MOD);
    state->set_key(Key("state"));
    state->set_mod_revision(state_revision_);
  }
  for (etcdserverpb::RequestOp& operation : operations) request.add_success()->Swap(&operation);
  *request.add_failure() = ReadOne(Key("leader"));
  *request.add_failure() = ReadOne(Key("state"));
  absl::StatusOr<etcdserverpb::TxnResponse> response = client_->Txn(request, TimeLeft(began_ns));
  if (!response.ok()) {
    const absl::Status failed = absl::UnavailableError(response.status().message());
    if (!OutcomeUnknown(response.status()) || VERBENA_FAILPOINT(etcd, unknown_is_failed))
      return failed;
    return EndLeadership(absl::UnavailableError(
        absl::StrCat("whether a change was saved is not known, so this coordinator leads no more: ",
                     failed.message())));
  }
  if (response->succeeded()) {
    if (writes_state) state_revision_ = response->header().revision();
    return absl::OkStatus();
  }
  if (response->responses_size() != 2)
    return absl::InternalError("etcd: a transaction's answer is not complete");
  const etcdserverpb::KeyValue* state = OneOf(response->responses(1));
  std::string content;
  stored::State now;
  if (state != nullptr && TakeChecksum("state", state->value(), &content) &&
      now.ParseFromString(content) && writes_state && now.save_id() == save_id &&
      !save_id.empty()) {
    // An attempt without an answer was applied.
    state_revision_ = state->mod_revision();
    return absl::OkStatus();
  }
  const etcdserverpb::KeyValue* leader = OneOf(response->responses(0));
  if (leader == nullptr || leader->create_revision() != leadership_.create_revision) {
    return EndLeadership(absl::UnavailableError(
        absl::StrCat("this coordinator leads no more: ",
                     leader == nullptr ? "its lease in etcd has ended"
                                       : absl::StrCat("the leader is ", leader->value()))));
  }
  return EndLeadership(absl::UnavailableError(
      absl::StrCat("the key ", Key("state"),
                   " in etcd was changed by another program; this coordinator leads "
                   "no more")));
}

absl::Status EtcdStore::SaveAll(const CoordinatorState& state,
                                absl::Span<const StateChange> changes) {
  if (!status_.ok()) return status_;
  const int64_t began_ns = clock_->NowNanos();
  // The save before this one was made, and is not written out.
  if (state_.staged_parts() > 0) {
    if (absl::Status completed = CompleteStaged(began_ns); !completed.ok()) return completed;
  }
  stored::State next;
  const EntryWrites writes = entries_.Collect(state, changes, &next);
  next.set_format(kFormat);
  next.set_save_id(RandomSaveId());
  entries_.SetSums(writes, &next);
  Operations operations;
  size_t bytes = 0;
  for (const auto& [key, content] : writes) {
    operations.push_back(EntryOperation(key, content));
    bytes += BytesOf(operations.back());
  }
  operations.push_back(PutState(next));
  bytes += BytesOf(operations.back());
  if (operations.size() > limits_.operations || bytes > limits_.bytes) {
    if (absl::Status saved = SaveStaged(writes, &next, began_ns); !saved.ok()) return saved;
  } else {
    const std::string save_id = next.save_id();
    if (absl::Status saved = Write(std::move(operations), true, save_id, began_ns); !saved.ok())
      return saved;
  }
  state_ = std::move(next);
  entries_.Keep(writes);
  empty_ = false;
  if (state_.staged_parts() > 0) {
    staged_ = writes;
    ++staged_saves_;
    // It is saved in any case; the next save tries again.
    CompleteStaged(began_ns).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::SaveStaged(const EntryWrites& writes, stored::State* next,
                                   int64_t began_ns) {
  if (VERBENA_FAILPOINT(etcd, entries_before_all)) {
    if (absl::Status written = WriteEntries(writes, began_ns); !written.ok()) return written;
  }
  const std::string prefix = StagedPrefix(next->save_id());
  std::vector<stored::StagedPart> parts(1);
  size_t bytes = 0;
  for (const auto& [key, content] : writes) {
    const size_t size = key.size() + (content ? content->size() : 0) + kOperationBytes;
    if (bytes > 0 && bytes + size > limits_.bytes) parts.emplace_back(), bytes = 0;
    stored::StagedPart::Write* write = parts.back().add_writes();
    write->set_key(key);
    write->set_removed(!content);
    if (content) write->set_value(*content);
    bytes += size;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = absl::StrCat(absl::Hex(i, absl::kZeroPad8));
    absl::Status written =
        Write({Put(prefix + name, WithChecksum(name, parts[i].SerializeAsString()))}, false, "",
              began_ns);
    if (written.ok()) continue;
    // Where space is short, parts that nothing will read must not stay until the next leader.
    if (i > 0 && status_.ok()) Write({RemoveAll(prefix)}, false, "", began_ns).IgnoreError();
    return written;
  }
  next->set_staged_parts(static_cast<uint32_t>(parts.size()));
  return Write({PutState(*next)}, true, next->save_id(), began_ns);
}

absl::Status EtcdStore::WriteEntries(const EntryWrites& writes, int64_t began_ns) {
  Operations operations;
  size_t bytes = 0;
  for (const auto& [key, content] : writes) {
    etcdserverpb::RequestOp operation = EntryOperation(key, content);
    const size_t size = BytesOf(operation);
    if (operations.size() >= limits_.operations || (bytes > 0 && bytes + size > limits_.bytes)) {
      absl::Status written = Write(std::exchange(operations, {}), false, "", began_ns);
      if (!written.ok()) return written;
      bytes = 0;
    }
    operations.push_back(std::move(operation));
    bytes += size;
  }
  return operations.empty() ? absl::OkStatus() : Write(std::move(operations), false, "", began_ns);
}

absl::Status EtcdStore::CompleteStaged(int64_t began_ns) {
  if (absl::Status written = WriteEntries(staged_, began_ns); !written.ok()) return written;
  stored::State done = state_;
  done.set_staged_parts(0);
  done.set_save_id(RandomSaveId());
  absl::Status ended = Write({PutState(done), RemoveAll(StagedPrefix(state_.save_id()))}, true,
                             done.save_id(), began_ns);
  if (!ended.ok()) return ended;
  state_ = std::move(done);
  staged_.clear();
  return absl::OkStatus();
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdStore::Read(etcdserverpb::RangeRequest request,
                                                            int64_t began_ns) {
  return client_->Range(request, TimeLeft(began_ns));
}

absl::StatusOr<EntryMap> EtcdStore::ReadAll(const std::string& prefix, int64_t revision,
                                            int64_t began_ns) {
  EntryMap all;
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(EndOfPrefix(prefix));
  request.set_revision(revision);
  request.set_limit(kKeysInPage);
  for (;;) {
    absl::StatusOr<etcdserverpb::RangeResponse> page = Read(request, began_ns);
    if (!page.ok()) return page.status();
    for (const etcdserverpb::KeyValue& kv : page->kvs())
      all[kv.key().substr(prefix.size())] = kv.value();
    if (!page->more() || page->kvs().empty()) return all;
    request.set_key(page->kvs().rbegin()->key() + std::string(1, '\0'));
  }
}

absl::Status EtcdStore::ReadState(int64_t began_ns, int64_t* revision) {
  etcdserverpb::RangeRequest request;
  request.set_key(Key("state"));
  absl::StatusOr<etcdserverpb::RangeResponse> response = Read(request, began_ns);
  if (!response.ok()) return response.status();
  *revision = response->header().revision();
  empty_ = response->kvs().empty();
  state_.Clear();
  state_revision_ = 0;
  if (empty_) return absl::OkStatus();
  state_revision_ = response->kvs(0).mod_revision();
  std::string content;
  if (!TakeChecksum("state", response->kvs(0).value(), &content) ||
      !state_.ParseFromString(content)) {
    return Damaged(absl::StrCat("checksum of ", Key("state")));
  }
  if (state_.format() > kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator's state in etcd below ", client_->options().prefix,
                     " has format ", state_.format(), ", and this verbenad knows up to ", kFormat,
                     ": a newer version wrote it; use that one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<EntryMap> EtcdStore::ReadEntries(int64_t revision, int64_t began_ns) {
  absl::StatusOr<EntryMap> stored = ReadAll(Key("entries/"), revision, began_ns);
  if (!stored.ok()) return stored.status();
  EntryMap entries;
  for (const auto& [key, value] : *stored) {
    if (!TakeChecksum(key, value, &entries[key]))
      return Damaged(absl::StrCat("checksum of ", EntryKey(key)));
  }
  return entries;
}

absl::Status EtcdStore::ReadStaged(int64_t revision, int64_t began_ns, EntryMap* entries) {
  staged_.clear();
  const std::string prefix = StagedPrefix(state_.save_id());
  absl::StatusOr<EntryMap> parts = ReadAll(prefix, revision, began_ns);
  if (!parts.ok()) return parts.status();
  if (parts->size() != state_.staged_parts()) {
    return Damaged(
        absl::StrCat(parts->size(), " of ", state_.staged_parts(), " parts are below ", prefix));
  }
  for (const auto& [name, value] : *parts) {
    std::string content;
    stored::StagedPart part;
    if (!TakeChecksum(name, value, &content) || !part.ParseFromString(content)) {
      return Damaged(absl::StrCat("checksum of ", prefix, name));
    }
    for (stored::StagedPart::Write& write : *part.mutable_writes()) {
      if (write.removed()) {
        staged_[write.key()] = std::nullopt;
        entries->erase(write.key());
      } else {
        staged_[write.key()] = write.value();
        (*entries)[write.key()] = std::move(*write.mutable_value());
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CoordinatorState> EtcdStore::LoadOnce(int64_t began_ns) {
  int64_t revision = 0;
  if (absl::Status read = ReadState(began_ns, &revision); !read.ok()) return read;
  absl::StatusOr<EntryMap> entries = ReadEntries(revision, began_ns);
  if (!entries.ok()) return entries.status();
  if (empty_) {
    if (!entries->empty()) return Damaged(absl::StrCat("there is no ", Key("state")));
    return CoordinatorState();
  }
  if (state_.staged_parts() > 0) {
    if (absl::Status read = ReadStaged(revision, began_ns, &*entries); !read.ok()) return read;
  }
  CoordinatorState state;
  if (absl::Status loaded = entries_.Load(*entries, state_, &state); !loaded.ok()) {
    return Damaged(std::string(loaded.message()));
  }
  return state;
}

absl::StatusOr<CoordinatorState> EtcdStore::Load() {
  if (!status_.ok()) return status_;
  const int64_t began_ns = clock_->NowNanos();
  absl::StatusOr<CoordinatorState> state = LoadOnce(began_ns);
  // A compaction removed the revision of which a part was read: all of a newer one is read.
  for (int i = 0; i < kMostReads && absl::IsOutOfRange(state.status()); ++i)
    state = LoadOnce(began_ns);
  if (!state.ok()) return state.status();
  if (state_.staged_parts() > 0) {
    if (absl::Status completed = CompleteStaged(began_ns); !completed.ok()) return completed;
  }
  // Also proves that nobody else leads: what was read is the newest state.
  if (absl::Status written = Write({RemoveAll(Key("staged/"))}, false, "", began_ns);
      !written.ok()) {
    return written;
  }
  return state;
}

}  // namespace verbena::server
