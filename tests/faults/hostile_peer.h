// A hostile peer of a cluster: random sequences, from a seed, of calls, connections and handshakes,
// with several tokens and with none.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_FAULTS_HOSTILE_PEER_H_
#define VERBENA_TESTS_FAULTS_HOSTILE_PEER_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control/grpc_control_channel.h"
#include "tests/faults/random_faults_plan.h"
#include "tests/server/http2_peer.h"
#include "verbena/client.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {

struct HostileOptions {
  uint64_t seed = 1;
  std::string cluster;                // host:port of the coordinator
  std::vector<std::string> controls;  // host:port of every gRPC server
  std::vector<std::string> metrics;   // host:port of every HTTP server
  std::vector<std::string> tokens;    // files; "": none
  std::string job_token;              // one of `tokens`: of the job kHostileJob
  std::string only;                   // the action that runs; empty: all
};

// The job that the hostile token is for.
inline constexpr char kHostileJob[] = "hostile";

class HostilePeer {
 public:
  explicit HostilePeer(HostileOptions options);
  ~HostilePeer();

  // Actions, one after the other, until the time is over.
  void Run(absl::Duration time);
  // "create 3x OK, 2x RESOURCE_EXHAUSTED; ...".
  std::string Report() const;
  // The names of all actions.
  static std::vector<std::string> Actions();

 private:
  struct Action {
    const char* name;
    void (HostilePeer::*run)();
  };
  static const std::vector<Action>& All();

  // Connections that are silent, partly spoken on, or flooded; held for a while.
  void Connect();
  void HalfHttp();
  void SlowScrape();
  void HalfCalls();
  void Garbage();
  void SlowReader();
  // Calls.
  void RandomCalls();
  void Flood();
  void JoinAndLeave();
  void Tables();
  void Lanes();
  void HalfLanes();
  void Transfers();

  GrpcControlChannel& ChannelOf(const std::string& token);
  // Sends a call whose answer is counted; waits while more than `most` are outstanding.
  void Call(const std::string& token, const std::string& address, const std::string& method,
            const google::protobuf::Message& request, size_t most);
  // Until no more than `most` calls are outstanding, or for `at_most`.
  void Drain(size_t most, absl::Duration at_most);
  bool Await(const std::string& token, const std::string& address, const std::string& method,
             const google::protobuf::Message& request, google::protobuf::Message* response);
  void Fill(google::protobuf::Message* message, int depth);
  std::string StrangeText();
  std::string RequestId();
  // A member of the hostile job; 0: it was refused.
  uint64_t Join(bool observer);
  bool OpenLane(v1::OpenLaneResponse* response);
  int Tcp(const std::string& address);
  const std::string& AnyToken() { return draw_.Of(options_.tokens); }
  const std::string& AnyControl() { return draw_.Of(options_.controls); }
  void Hold(absl::Duration least, absl::Duration most);
  void Count(const std::string& outcome) { ++counts_[action_][outcome]; }

  const HostileOptions options_;
  Draw draw_;
  absl::Time end_;
  std::string action_;
  std::map<std::string, std::map<std::string, uint64_t>> counts_;
  std::map<std::string, std::unique_ptr<GrpcControlChannel>> channels_;  // by token file
  size_t outstanding_ = 0;
  std::vector<int> held_;  // sockets that stay open until they are too many
  v1::ClusterView view_;   // the newest that was seen
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_HOSTILE_PEER_H_
