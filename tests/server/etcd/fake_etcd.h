// An etcd in this process, served by gRPC on a free port: keys with their revisions, transactions,
// leases, users, and faults where a test asks for them.
//
// **Thread safety**: every function from any thread.
#ifndef VERBENA_TESTS_SERVER_ETCD_FAKE_ETCD_H_
#define VERBENA_TESTS_SERVER_ETCD_FAKE_ETCD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "etcd/etcd.grpc.pb.h"
#include "rdma/base/clock.h"
#include "server/coordinator/etcd/etcd_client.h"

namespace grpc {
class Server;
}

namespace verbena::server {

class FakeEtcd {
 public:
  enum class Fault {
    kNone,
    kLost,         // not applied; the caller does not know
    kAnswerLost,   // applied; the caller does not know
    kLate,         // applied by ApplyLate(); the caller does not know
    kTooMany,      // refused: too many requests
    kNoLeader,     // refused
    kHang,         // no answer until the caller's deadline
    kBadToken,     // refused: the token has expired
    kCompacted,    // refused: the requested revision is compacted
    kNoSpace,      // refused: the space is full
    kTokenForgot,  // all tokens end now; then as kNone
  };
  // Called for each request with the name of its call, before anything else.
  using Faults = std::function<Fault(const std::string& call)>;
  // One request in `in` fails, by one of `kinds`; the same ones for a seed.
  static Faults RandomFaults(uint64_t seed, uint64_t in, std::vector<Fault> kinds);

  FakeEtcd();
  ~FakeEtcd();

  std::string address() const;
  EtcdOptions Options() const;  // with short times
  void SetFaults(Faults faults);
  void RequireUser(const std::string& user, const std::string& password);
  void SetNoSpace(bool full);

  // Of the test, beside all leases and faults. The result is the key's new create revision.
  int64_t Recreate(const std::string& key, const std::string& value);
  void Remove(const std::string& key);
  void Overwrite(const std::string& key, const std::string& value);
  std::string Value(const std::string& key) const;  // empty: there is none
  std::vector<std::string> Keys(const std::string& prefix) const;
  void Compact();  // all but the newest revision
  // Applies one of the late requests, the `n`-th of them modulo their number. False: there is none.
  bool ApplyLate(uint64_t n);
  size_t late() const;
  void EndLease(int64_t lease);
  // Leases that have ended stay, with their keys, until they are revoked. The actual etcd removes
  // them within half a second.
  void KeepEndedLeases(bool keep);
  // As after an election among etcd's members.
  void NewTerm();
  std::vector<int64_t> Leases() const;
  int64_t requests(const std::string& call) const;

 private:
  struct Version {
    int64_t revision = 0;
    bool removed = false;
    etcdserverpb::KeyValue kv;
  };
  struct Lease {
    int64_t seconds = 0;
    int64_t until_ns = 0;
  };
  class KvService;
  class LeaseService;
  class AuthService;

  // Whether the caller's request is to be applied (OK), and whether the answer reaches it (*lost).
  grpc::Status Begin(const std::string& call, grpc::ServerContext* context, bool* apply, bool* late,
                     grpc::Status* answer);
  grpc::Status Apply(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse* response);
  grpc::Status ReadRange(const etcdserverpb::RangeRequest& request,
                         etcdserverpb::RangeResponse* response) const;
  const etcdserverpb::KeyValue* Find(const std::string& key) const;
  bool Holds(const etcdserverpb::Compare& compare) const;
  void PutKey(const std::string& key, const std::string& value, int64_t lease);
  void RemoveKey(const std::string& key);
  std::vector<std::string> KeysOf(const std::string& key, const std::string& end) const;
  void EndLeases();
  void EndLeaseLocked(int64_t lease);

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  Faults faults_;
  std::map<std::string, std::vector<Version>> keys_;
  int64_t revision_ = 1;
  int64_t compacted_ = 0;
  bool no_space_ = false;
  bool keep_ended_leases_ = false;
  uint64_t term_ = 2;
  std::map<int64_t, Lease> leases_;
  int64_t next_lease_ = 1000;
  std::deque<etcdserverpb::TxnRequest> late_;
  std::string user_, password_;
  std::set<std::string> tokens_;
  int64_t next_token_ = 1;
  std::map<std::string, int64_t> requests_;

  const MonotonicClock clock_;
  int port_ = 0;
  std::unique_ptr<KvService> kv_;
  std::unique_ptr<LeaseService> lease_;
  std::unique_ptr<AuthService> auth_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_ETCD_FAKE_ETCD_H_
