#include "tests/server/etcd/fake_etcd.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

namespace verbena::server {
namespace {

using grpc::Status;
using grpc::StatusCode;

// etcd's defaults.
constexpr int kMostOperations = 128;
constexpr size_t kMostBytes = 1536 << 10;

Status LostStatus() { return {StatusCode::UNAVAILABLE, "etcdserver: request timed out"}; }

}  // namespace

class FakeEtcd::KvService final : public etcdserverpb::KV::Service {
 public:
  explicit KvService(FakeEtcd* etcd) : etcd_(etcd) {}
  Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
               etcdserverpb::RangeResponse* response) override {
    bool apply = true, late = false;
    Status answer;
    if (Status begun = etcd_->Begin("Range", context, &apply, &late, &answer); !begun.ok())
      return begun;
    const std::lock_guard<std::mutex> lock(etcd_->mutex_);
    const Status read = etcd_->ReadRange(*request, response);
    return read.ok() ? answer : read;
  }
  Status Txn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
             etcdserverpb::TxnResponse* response) override {
    bool apply = true, late = false;
    Status answer;
    if (Status begun = etcd_->Begin("Txn", context, &apply, &late, &answer); !begun.ok())
      return begun;
    const std::lock_guard<std::mutex> lock(etcd_->mutex_);
    if (late) etcd_->late_.push_back(*request);
    if (!apply) return answer;
    const Status applied = etcd_->Apply(*request, response);
    return applied.ok() ? answer : applied;
  }

 private:
  FakeEtcd* const etcd_;
};

class FakeEtcd::LeaseService final : public etcdserverpb::Lease::Service {
 public:
  explicit LeaseService(FakeEtcd* etcd) : etcd_(etcd) {}
  Status LeaseGrant(grpc::ServerContext* context, const etcdserverpb::LeaseGrantRequest* request,
                    etcdserverpb::LeaseGrantResponse* response) override {
    bool apply = true, late = false;
    Status answer;
    if (Status begun = etcd_->Begin("LeaseGrant", context, &apply, &late, &answer); !begun.ok())
      return begun;
    if (!apply) return answer;
    const std::lock_guard<std::mutex> lock(etcd_->mutex_);
    const int64_t id = etcd_->next_lease_++;
    etcd_->leases_[id] = {request->ttl(),
                          etcd_->clock_.NowNanos() + request->ttl() * 1'000'000'000};
    response->set_id(id);
    response->set_ttl(request->ttl());
    return answer;
  }
  Status LeaseRevoke(grpc::ServerContext* context, const etcdserverpb::LeaseRevokeRequest* request,
                     etcdserverpb::LeaseRevokeResponse*) override {
    bool apply = true, late = false;
    Status answer;
    if (Status begun = etcd_->Begin("LeaseRevoke", context, &apply, &late, &answer); !begun.ok())
      return begun;
    if (!apply) return answer;
    const std::lock_guard<std::mutex> lock(etcd_->mutex_);
    if (!etcd_->leases_.contains(request->id())) {
      return {StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
    }
    etcd_->EndLeaseLocked(request->id());
    return answer;
  }
  Status LeaseTimeToLive(grpc::ServerContext* context,
                         const etcdserverpb::LeaseTimeToLiveRequest* request,
                         etcdserverpb::LeaseTimeToLiveResponse* response) override {
    bool apply = true, late = false;
    Status answer;
    if (Status begun = etcd_->Begin("LeaseTimeToLive", context, &apply, &late, &answer);
        !begun.ok()) {
      return begun;
    }
    const std::lock_guard<std::mutex> lock(etcd_->mutex_);
    const auto it = etcd_->leases_.find(request->id());
    if (it == etcd_->leases_.end()) {
      return {StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
    }
    response->mutable_header()->set_raft_term(etcd_->term_);
    response->set_id(request->id());
    response->set_ttl((it->second.until_ns - etcd_->clock_.NowNanos()) / 1'000'000'000);
    response->set_grantedttl(it->second.seconds);
    return answer;
  }
  Status LeaseKeepAlive(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      bool apply = true, late = false;
      Status answer;
      if (Status begun = etcd_->Begin("LeaseKeepAlive", context, &apply, &late, &answer);
          !begun.ok()) {
        return begun;
      }
      etcdserverpb::LeaseKeepAliveResponse response;
      response.set_id(request.id());
      {
        const std::lock_guard<std::mutex> lock(etcd_->mutex_);
        const auto it = etcd_->leases_.find(request.id());
        const int64_t now = etcd_->clock_.NowNanos();
        if (it != etcd_->leases_.end() && now < it->second.until_ns && apply) {
          it->second.until_ns = now + it->second.seconds * 1'000'000'000;
          response.set_ttl(it->second.seconds);
        }
      }
      if (!answer.ok()) return answer;
      stream->Write(response);
    }
    return Status::OK;
  }

 private:
  FakeEtcd* const etcd_;
};

class FakeEtcd::AuthService final : public etcdserverpb::Auth::Service {
 public:
  explicit AuthService(FakeEtcd* etcd) : etcd_(etcd) {}
  Status Authenticate(grpc::ServerContext*, const etcdserverpb::AuthenticateRequest* request,
                      etcdserverpb::AuthenticateResponse* response) override {
    const std::lock_guard<std::mutex> lock(etcd_->mutex_);
    ++etcd_->requests_["Authenticate"];
    if (etcd_->user_.empty()) {
      return {StatusCode::FAILED_PRECONDITION, "etcdserver: authentication is not enabled"};
    }
    if (request->name() != etcd_->user_ || request->password() != etcd_->password_) {
      return {StatusCode::INVALID_ARGUMENT,
              "etcdserver: authentication failed, invalid user ID or password"};
    }
    const std::string token = "token" + std::to_string(etcd_->next_token_++);
    etcd_->tokens_.insert(token);
    response->set_token(token);
    return Status::OK;
  }

 private:
  FakeEtcd* const etcd_;
};

FakeEtcd::FakeEtcd()
    : kv_(std::make_unique<KvService>(this)),
      lease_(std::make_unique<LeaseService>(this)),
      auth_(std::make_unique<AuthService>(this)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(kv_.get());
  builder.RegisterService(lease_.get());
  builder.RegisterService(auth_.get());
  builder.SetMaxReceiveMessageSize(64 << 20);
  server_ = builder.BuildAndStart();
}

FakeEtcd::~FakeEtcd() { server_->Shutdown(std::chrono::system_clock::now()); }

std::string FakeEtcd::address() const { return "127.0.0.1:" + std::to_string(port_); }

EtcdOptions FakeEtcd::Options() const {
  EtcdOptions options;
  options.endpoints = {address()};
  options.pause = absl::Milliseconds(1);
  return options;
}

FakeEtcd::Faults FakeEtcd::RandomFaults(uint64_t seed, uint64_t in, std::vector<Fault> kinds) {
  return
      [in, kinds = std::move(kinds), random = std::mt19937_64(seed)](const std::string&) mutable {
        return random() % in == 0 ? kinds[random() % kinds.size()] : Fault::kNone;
      };
}

void FakeEtcd::SetFaults(Faults faults) {
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_ = std::move(faults);
}

void FakeEtcd::RequireUser(const std::string& user, const std::string& password) {
  const std::lock_guard<std::mutex> lock(mutex_);
  user_ = user;
  password_ = password;
}

void FakeEtcd::SetNoSpace(bool full) {
  const std::lock_guard<std::mutex> lock(mutex_);
  no_space_ = full;
}

void FakeEtcd::KeepEndedLeases(bool keep) {
  const std::lock_guard<std::mutex> lock(mutex_);
  keep_ended_leases_ = keep;
}

void FakeEtcd::NewTerm() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++term_;
}

Status FakeEtcd::Begin(const std::string& call, grpc::ServerContext* context, bool* apply,
                       bool* late, Status* answer) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++requests_[call];
  EndLeases();
  const Fault fault = faults_ ? faults_(call) : Fault::kNone;
  if (fault == Fault::kTokenForgot) tokens_.clear();
  if (!user_.empty()) {
    const auto& metadata = context->client_metadata();
    const auto it = metadata.find("token");
    if (it == metadata.end())
      return {StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"};
    if (!tokens_.contains(std::string(it->second.data(), it->second.size()))) {
      return {StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"};
    }
  }
  switch (fault) {
    case Fault::kNone:
    case Fault::kTokenForgot:
      return Status::OK;
    case Fault::kLost:
      *apply = false;
      *answer = LostStatus();
      return Status::OK;
    case Fault::kAnswerLost:
      *answer = LostStatus();
      return Status::OK;
    case Fault::kLate:
      *apply = false;
      *late = true;
      *answer = LostStatus();
      return Status::OK;
    case Fault::kTooMany:
      return {StatusCode::RESOURCE_EXHAUSTED, "etcdserver: too many requests"};
    case Fault::kNoLeader:
      return {StatusCode::UNAVAILABLE, "etcdserver: no leader"};
    case Fault::kBadToken:
      return {StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"};
    case Fault::kCompacted:
      return {StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"};
    case Fault::kNoSpace:
      return {StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"};
    case Fault::kHang:
      lock.unlock();
      // The caller gives up, by its deadline.
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return LostStatus();
  }
  return Status::OK;
}

const etcdserverpb::KeyValue* FakeEtcd::Find(const std::string& key) const {
  const auto it = keys_.find(key);
  if (it == keys_.end() || it->second.empty() || it->second.back().removed) return nullptr;
  return &it->second.back().kv;
}

std::vector<std::string> FakeEtcd::KeysOf(const std::string& key, const std::string& end) const {
  std::vector<std::string> found;
  if (end.empty()) {
    if (Find(key) != nullptr) found.push_back(key);
    return found;
  }
  for (auto it = keys_.lower_bound(key); it != keys_.end() && it->first < end; ++it) {
    if (Find(it->first) != nullptr) found.push_back(it->first);
  }
  return found;
}

Status FakeEtcd::ReadRange(const etcdserverpb::RangeRequest& request,
                           etcdserverpb::RangeResponse* response) const {
  const int64_t at = request.revision() == 0 ? revision_ : request.revision();
  if (request.revision() != 0 && at < compacted_) {
    return {StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"};
  }
  response->mutable_header()->set_revision(revision_);
  response->mutable_header()->set_raft_term(term_);
  const std::string end =
      request.range_end().empty() ? request.key() + std::string(1, '\0') : request.range_end();
  for (auto it = keys_.lower_bound(request.key()); it != keys_.end() && it->first < end; ++it) {
    const Version* found = nullptr;
    for (const Version& version : it->second) {
      if (version.revision <= at) found = &version;
    }
    if (found == nullptr || found->removed) continue;
    response->set_count(response->count() + 1);
    if (request.limit() > 0 && response->kvs_size() >= request.limit()) {
      response->set_more(true);
      continue;
    }
    *response->add_kvs() = found->kv;
  }
  return Status::OK;
}

bool FakeEtcd::Holds(const etcdserverpb::Compare& compare) const {
  static const etcdserverpb::KeyValue kNone;
  const etcdserverpb::KeyValue* found = Find(compare.key());
  const etcdserverpb::KeyValue& kv = found == nullptr ? kNone : *found;
  if (compare.result() != etcdserverpb::Compare::EQUAL) return false;
  switch (compare.target()) {
    case etcdserverpb::Compare::CREATE:
      return kv.create_revision() == compare.create_revision();
    case etcdserverpb::Compare::MOD:
      return kv.mod_revision() == compare.mod_revision();
    default:
      return false;
  }
}

void FakeEtcd::PutKey(const std::string& key, const std::string& value, int64_t lease) {
  const etcdserverpb::KeyValue* before = Find(key);
  Version next;
  next.revision = revision_;
  next.kv.set_key(key);
  next.kv.set_value(value);
  next.kv.set_lease(lease);
  next.kv.set_mod_revision(revision_);
  next.kv.set_create_revision(before == nullptr ? revision_ : before->create_revision());
  next.kv.set_version(before == nullptr ? 1 : before->version() + 1);
  keys_[key].push_back(std::move(next));
}

void FakeEtcd::RemoveKey(const std::string& key) {
  if (Find(key) == nullptr) return;
  keys_[key].push_back({revision_, true, {}});
}

Status FakeEtcd::Apply(const etcdserverpb::TxnRequest& request,
                       etcdserverpb::TxnResponse* response) {
  if (request.success_size() > kMostOperations) {
    return {StatusCode::INVALID_ARGUMENT, "etcdserver: too many operations in txn request"};
  }
  if (request.ByteSizeLong() > kMostBytes) {
    return {StatusCode::INVALID_ARGUMENT, "etcdserver: request is too large"};
  }
  const bool holds = std::all_of(request.compare().begin(), request.compare().end(),
                                 [this](const etcdserverpb::Compare& c) { return Holds(c); });
  const auto& operations = holds ? request.success() : request.failure();
  std::set<std::string> written;
  bool changes = false;
  for (const etcdserverpb::RequestOp& operation : operations) {
    changes |= !operation.has_request_range();
    if (!operation.has_request_put()) continue;
    if (no_space_)
      return {StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"};
    if (!written.insert(operation.request_put().key()).second) {
      return {StatusCode::INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"};
    }
    const int64_t lease = operation.request_put().lease();
    if (lease != 0 && !leases_.contains(lease)) {
      return {StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
    }
  }
  if (changes) ++revision_;
  response->set_succeeded(holds);
  for (const etcdserverpb::RequestOp& operation : operations) {
    etcdserverpb::ResponseOp* answer = response->add_responses();
    if (operation.has_request_range()) {
      const Status read = ReadRange(operation.request_range(), answer->mutable_response_range());
      if (!read.ok()) return read;
    } else if (operation.has_request_put()) {
      const etcdserverpb::PutRequest& put = operation.request_put();
      PutKey(put.key(), put.value(), put.lease());
      answer->mutable_response_put();
    } else {
      const etcdserverpb::DeleteRangeRequest& removal = operation.request_delete_range();
      for (const std::string& key : KeysOf(removal.key(), removal.range_end())) RemoveKey(key);
      answer->mutable_response_delete_range();
    }
  }
  response->mutable_header()->set_revision(revision_);
  return Status::OK;
}

int64_t FakeEtcd::Recreate(const std::string& key, const std::string& value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++revision_;
  RemoveKey(key);
  ++revision_;
  PutKey(key, value, 0);
  return revision_;
}

void FakeEtcd::Remove(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++revision_;
  RemoveKey(key);
}

void FakeEtcd::Overwrite(const std::string& key, const std::string& value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++revision_;
  PutKey(key, value, 0);
}

std::string FakeEtcd::Value(const std::string& key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const etcdserverpb::KeyValue* kv = Find(key);
  return kv == nullptr ? "" : kv->value();
}

std::vector<std::string> FakeEtcd::Keys(const std::string& prefix) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return KeysOf(prefix, EndOfPrefix(prefix));
}

void FakeEtcd::Compact() {
  const std::lock_guard<std::mutex> lock(mutex_);
  compacted_ = ++revision_;
  for (auto it = keys_.begin(); it != keys_.end();) {
    std::vector<Version>& versions = it->second;
    versions.erase(versions.begin(), versions.end() - 1);
    it = versions.back().removed ? keys_.erase(it) : std::next(it);
  }
}

bool FakeEtcd::ApplyLate(uint64_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (late_.empty()) return false;
  const auto it = late_.begin() + static_cast<std::ptrdiff_t>(n % late_.size());
  etcdserverpb::TxnResponse ignored;
  (void)Apply(*it, &ignored);
  late_.erase(it);
  return true;
}

size_t FakeEtcd::late() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return late_.size();
}

void FakeEtcd::EndLeaseLocked(int64_t lease) {
  leases_.erase(lease);
  bool any = false;
  for (const auto& [key, versions] : keys_) {
    if (versions.empty() || versions.back().removed || versions.back().kv.lease() != lease)
      continue;
    if (!std::exchange(any, true)) ++revision_;
    RemoveKey(key);
  }
}

void FakeEtcd::EndLeases() {
  if (keep_ended_leases_) return;
  const int64_t now = clock_.NowNanos();
  std::vector<int64_t> due;
  for (const auto& [id, lease] : leases_) {
    if (lease.until_ns <= now) due.push_back(id);
  }
  for (const int64_t id : due) EndLeaseLocked(id);
}

void FakeEtcd::EndLease(int64_t lease) {
  const std::lock_guard<std::mutex> lock(mutex_);
  EndLeaseLocked(lease);
}

std::vector<int64_t> FakeEtcd::Leases() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int64_t> all;
  for (const auto& [id, lease] : leases_) all.push_back(id);
  return all;
}

int64_t FakeEtcd::requests(const std::string& call) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = requests_.find(call);
  return it == requests_.end() ? 0 : it->second;
}

}  // namespace verbena::server
