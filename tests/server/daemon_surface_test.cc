// The whole gRPC surface of a daemon under bytes that anybody may send: it answers, and goes on.
#include <arpa/inet.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/socket.h>

#include <future>
#include <random>

#include "proto/base/host_port.h"
#include "rdma/base/unique_fd.h"
#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int kRequestsOfMethod = 150;
constexpr int kConnections = 100;
constexpr uint64_t kDaemonsIncarnation = 1;  // the first to join

// Any message with any fields: well formed, seldom sensible.
void Fill(std::mt19937* random, int depth, Message* message) {
  const auto* type = message->GetDescriptor();
  const auto* reflection = message->GetReflection();
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>((*random)() % n); };
  // Small numbers are those that mean something; the greatest are those that overflow.
  const auto number = [&]() -> uint64_t { return below(4) == 0 ? ~uint64_t{0} : below(5); };
  const auto text = [&] {
    if (below(3) == 0) return std::string(16, static_cast<char>('a' + below(26)));
    std::string bytes(below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(' ' + below(95));
    return bytes;
  };
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_map() || below(3) == 0) continue;
    const bool repeated = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth > 4) break;
        Fill(random, depth + 1,
             repeated ? reflection->AddMessage(message, field)
                      : reflection->MutableMessage(message, field));
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        repeated ? reflection->AddString(message, field, text())
                 : reflection->SetString(message, field, text());
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        repeated ? reflection->AddUInt64(message, field, number())
                 : reflection->SetUInt64(message, field, number());
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        // The caller decides how long to wait: not for ever in a test.
        if (field->name() == "wait_ms") break;
        repeated ? reflection->AddUInt32(message, field, static_cast<uint32_t>(number()))
                 : reflection->SetUInt32(message, field, static_cast<uint32_t>(number()));
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        reflection->SetInt32(message, field, static_cast<int32_t>(number()));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(message, field, below(2) == 0);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (!repeated) reflection->SetDouble(message, field, below(2) == 0 ? 1e308 * 10 : 0.5);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnumValue(message, field, static_cast<int>(below(6)));
        break;
      default:
        break;
    }
  }
}

// The same, or with bytes changed, or cut, or nothing but noise.
std::string Spoil(std::mt19937* random, std::string bytes) {
  const uint32_t how = (*random)() % 4;
  if (how == 0) return bytes;
  if (how == 1 && !bytes.empty()) bytes.resize((*random)() % bytes.size());
  if (how == 2) bytes.assign((*random)() % 300, '\0');
  for (int i = 0; i < 4 && !bytes.empty(); ++i) {
    bytes[(*random)() % bytes.size()] = static_cast<char>((*random)());
  }
  return bytes;
}

grpc::Status CallWith(grpc::GenericStub* stub, const std::string& method,
                      const std::string& bytes) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> ended;
  stub->UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                  [&](grpc::Status status) { ended.set_value(std::move(status)); });
  return ended.get_future().get();
}

void SendNoise(const std::string& address, const std::string& bytes) {
  const auto parsed = SplitHostPort(address);
  const rdma::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(parsed->port);
  inet_pton(AF_INET, parsed->host.c_str(), &to.sin_addr);
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  [[maybe_unused]] const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Without tokens a daemon executes a server's leave by any caller, so such requests are skipped.
bool ReplicatesToLeave(const Message& request, const std::string& bytes) {
  v1::LeaveRequest leave;
  return request.GetDescriptor() == v1::LeaveRequest::descriptor() &&
         leave.ParseFromString(bytes) && leave.incarnation() == kDaemonsIncarnation;
}

TEST_CASE("requests and connections of any bytes: a daemon answers each, goes on, ends cleanly") {
  Daemon daemon({"--coordinator", "--name", "first", "--memory-limit", "134217728"});
  const std::string address = daemon.Ready().address();
  std::mt19937 random(7);
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  for (const auto* file :
       {v1::ClusterView::descriptor()->file(), v1::OpenLaneRequest::descriptor()->file()}) {
    const auto* service = file->service(0);
    for (int m = 0; m < service->method_count(); ++m) {
      const std::string method = "/" + service->full_name() + "/" + service->method(m)->name();
      const std::unique_ptr<Message> request(google::protobuf::MessageFactory::generated_factory()
                                                 ->GetPrototype(service->method(m)->input_type())
                                                 ->New());
      for (int i = 0; i < kRequestsOfMethod; ++i) {
        request->Clear();
        Fill(&random, 0, request.get());
        const std::string bytes = Spoil(&random, request->SerializePartialAsString());
        if (ReplicatesToLeave(*request, bytes)) continue;
        const grpc::Status status = CallWith(&stub, method, bytes);
        INFO(method << " " << i << ": " << status.error_code() << " " << status.error_message());
        // A reason is given; the daemon neither ends nor hangs. gRPC itself answers bytes that are
        // no message, without a reason.
        REQUIRE((status.ok() || !status.error_message().empty() ||
                 status.error_code() == grpc::StatusCode::UNIMPLEMENTED));
        REQUIRE(status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
        REQUIRE(daemon.process().running());
      }
    }
  }
  for (int i = 0; i < kConnections; ++i) {
    std::string bytes = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (uint32_t n = random() % 200; n > 0; --n) bytes += static_cast<char>(random());
    SendNoise(address, bytes);
  }
  CHECK(CallWith(&stub, "/verbena.v1.Cluster/Nothing", "").error_code() ==
        grpc::StatusCode::UNIMPLEMENTED);
  const Finished status = Cli({"--cluster", address, "status"});
  INFO(status.err);
  CHECK_THAT(status.out, Catch::Matchers::Contains("first"));
  daemon.process().Signal(SIGTERM);
  const auto ended = daemon.process().Wait();
  INFO(daemon.process().err());
  CHECK(ended == 0);
}

}  // namespace
}  // namespace verbena::test
