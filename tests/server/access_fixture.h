// A cluster of real processes that asks for tokens, and its operator.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_SERVER_ACCESS_FIXTURE_H_
#define VERBENA_TESTS_SERVER_ACCESS_FIXTURE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <poll.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "tests/server/identity_files.h"
#include "verbena/client.h"

namespace verbena::test {

// A coordinator that is a server, too, with mutual TLS and tokens; and an operator in front of it.
class TokenCluster {
 public:
  explicit TokenCluster(std::vector<std::string> more = {})
      : daemon_(server_.Options(
            Joined({"--coordinator", "--name", "first", "--log-level", "trace",
                    "--operator-token-file", File("operator.token"), "--audit-log", File("audit")},
                   std::move(more)))) {
    address_ = daemon_.Ready().address();
  }

  const std::string& address() const { return address_; }
  Daemon& daemon() { return daemon_; }
  std::string File(const std::string& name) const { return directory_.File(name); }
  const Files& worker() const { return worker_; }
  const Files& strange() const { return strange_; }
  std::string audit() const { return ReadFile(File("audit")); }
  std::string operator_token() const { return File("operator.token"); }

  Finished Operate(std::vector<std::string> arguments, const std::string& token = {}) const {
    std::vector<std::string> command = {"--cluster", address_, "--token-file",
                                        token.empty() ? operator_token() : token};
    command = worker_.Options(std::move(command));
    command.insert(command.end(), arguments.begin(), arguments.end());
    return Cli(command);
  }
  // Its file.
  std::string Token(const std::string& name, std::vector<std::string> options) const {
    std::vector<std::string> command = {"token", "create", "--out", File(name)};
    command.insert(command.end(), options.begin(), options.end());
    const Finished made = Operate(command);
    INFO(made.err);
    REQUIRE(made.status == 0);
    CHECK(made.out == "");  // the file's contents are nowhere else
    return File(name);
  }
  void Revoke(const std::string& token_file) const {
    const Finished revoked = Operate({"token", "revoke", IdIn(token_file)});
    INFO(revoked.err);
    REQUIRE(revoked.status == 0);
  }
  static std::string IdIn(const std::string& token_file) {
    return ReadFile(token_file).substr(4, 12);
  }

  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& token, const std::string& job,
                                                  bool observer = false) const {
    return Client::Connect(As(token, job, observer));
  }
  ClientOptions As(const std::string& token, const std::string& job, bool observer) const {
    ClientOptions options;
    options.cluster = address_;
    options.job = job;
    options.name = "worker-of-" + job;
    options.observer = observer;
    options.timeout = absl::Seconds(20);
    options.tls = worker_.tls();
    options.token_file = token;
    return options;
  }

 private:
  static std::vector<std::string> Joined(std::vector<std::string> a, std::vector<std::string> b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  Authority authority_{"the authority"}, stranger_{"a stranger"};
  TemporaryDirectory directory_;
  Files server_{authority_.certificate(), authority_.Issue({.name = "server"})};
  Files worker_{authority_.certificate(), authority_.Issue({.name = "worker"})};
  Files strange_{authority_.certificate(), stranger_.Issue({.name = "strange"})};
  Daemon daemon_;
  std::string address_;
};

inline v1::TableSpec Spec(const std::string& name, const std::string& job) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job);
  spec.add_shape(64);
  spec.set_dtype(v1::DTYPE_F32);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

// One call of any method, by its descriptor.
inline absl::Status CallMethod(GrpcControlChannel* channel, const std::string& address,
                               const std::string& method, const google::protobuf::Message& request,
                               const google::protobuf::Descriptor* answer) {
  absl::Status result = absl::UnknownError("not called");
  bool done = false;
  std::shared_ptr<google::protobuf::Message> response(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(answer)->New());
  channel->Unary(address, method, request, response, absl::Seconds(20), [&](absl::Status status) {
    result = std::move(status);
    done = true;
  });
  while (!done) {
    if (channel->RunOnce()) continue;
    pollfd fd = {channel->wake_fd(), POLLIN, 0};
    poll(&fd, 1, 1000);
  }
  return result;
}

// A client's side of the control plane, as somebody.
inline std::unique_ptr<GrpcControlChannel> ChannelAs(const TlsOptions& tls,
                                                     const std::string& token) {
  auto files = TlsFiles::Open(tls);
  REQUIRE(files.ok());
  auto file = TokenFile::Open(token);
  REQUIRE(file.ok());
  return std::make_unique<GrpcControlChannel>(*files, *file);
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_ACCESS_FIXTURE_H_
