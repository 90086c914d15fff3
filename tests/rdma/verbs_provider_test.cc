// A real device with the limits and delays of other providers (verbs_shim.h): outcome and message.
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <future>
#include <thread>

#include "tests/rdma/transport_conformance.h"
#include "tests/rdma/verbs_fixture.h"
#include "tests/rdma/verbs_shim.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

bool Mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("windows larger than the provider binds: pieces are bound, and a refusal ends no lane") {
  const ShimReset reset;
  VerbsOptions options = TestVerbsOptions();
  options.max_window = 1 << 20;
  Stage stage(VerbsUnderTest(options));
  Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 8, 8, 65536});
  REQUIRE(pair.established);
  verbs_shim().max_bind_bytes = 1 << 20;
  const size_t most = pair.client.endpoint->max_exposure();
  CHECK(most == 1 << 20);
  const auto large = TestBlock(4 << 20);
  const auto whole = pair.client.endpoint->Expose(pair.c, large, 0, 4 << 20);
  CHECK(whole.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Mentions(whole.status(), "1048576"));
  const size_t last = (4 << 20) - most;
  const auto memory = pair.client.endpoint->Expose(pair.c, large, last, most);
  INFO(memory.status());
  REQUIRE(memory.ok());
  FillPattern(*pair.server_block, 0, 4096, 5);
  const Segment segment = {pair.server_block->data(), 4096, pair.server_block.get()};
  WriteRequest write;
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = {memory->address + most - 4096, memory->key};
  write.immediate = 1;
  REQUIRE(pair.server.endpoint->PostWrite(pair.s, write).ok());
  REQUIRE(stage.Until([&] { return pair.client.Immediates(pair.c).size() == 1; }));
  CHECK(HasPattern(*large, (4 << 20) - 4096, 4096, 5));
  // A provider that takes less than expected.
  verbs_shim().max_bind_bytes = 65536;
  const auto refused = pair.client.endpoint->Expose(pair.c, large, 0, most);
  CHECK(Mentions(refused.status(), "cannot bind a memory window on rxe"));
  CHECK(pair.client.endpoint->Expose(pair.c, large, 0, 65536).ok());
  REQUIRE(pair.Push(0, 4096, 2).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
}

TEST_CASE("queue pairs refused with ENOMEM though max_qp_wr allows them") {
  const ShimReset reset;
  SECTION("with less inline data they fit") {
    verbs_shim().create_qp = [](const ibv_qp_init_attr& asked) {
      return asked.cap.max_inline_data > 64 ? ENOMEM : 0;
    };
    Stage stage(VerbsUnderTest());
    Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 8, 65536});
    REQUIRE(pair.established);
    CHECK_THAT(pair.client.endpoint->settings(), Catch::Contains("inline 64 bytes"));
    REQUIRE(pair.Push(0, 200, 1).ok());
    CHECK(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  }
  SECTION("they do not fit: the error names the settings to lower, and nothing is left of it") {
    const auto endpoint = NewTestEndpoint();
    const auto objects = KernelObjects();
    verbs_shim().create_qp = [](const ibv_qp_init_attr&) { return ENOMEM; };
    const absl::Status status = endpoint->Create({64, 64}).status();
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    for (const char* text : {"112 sends", "64 receives", "max_qp_wr", "errno 12", "--slots",
                             "--operations", "ulimit -l"}) {
      CHECK(Mentions(status, text));
    }
    CHECK(KernelObjects().at("qp") == objects.at("qp"));
    verbs_shim().create_qp = nullptr;
    CHECK(endpoint->Create({64, 64}).ok());
  }
}

TEST_CASE("while one registration goes on, other lanes connect, register and carry data") {
  const ShimReset reset;
  const auto large = TestBlock(1 << 20);
  std::promise<void> begun, finish;
  std::shared_future<void> may_finish = finish.get_future().share();
  verbs_shim().on_registration = [&](const void* address, size_t) {
    if (address != large->data()) return;
    begun.set_value();
    may_finish.wait();
  };
  absl::Status registered;
  std::thread slow([&] {
    const auto endpoint = NewTestEndpoint();
    registered = endpoint->Register(large);
  });
  begun.get_future().wait();
  {
    Stage stage(VerbsUnderTest());
    Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 8, 65536});
    CHECK(pair.established);
    CHECK(pair.client.endpoint->Register(TestBlock(4096)).ok());
    CHECK(pair.Push(0, 65536, 1).ok());
    CHECK(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  }
  finish.set_value();
  slow.join();
  CHECK(registered.ok());
}

TEST_CASE("each GID index of the address is set in the queue pair, and reported") {
  const ShimReset reset;
  VerbsOptions options = TestVerbsOptions();
  std::string why;
  std::vector<int> indexes;
  for (const VerbsPort& port : ListVerbsPorts(-1, &why)) {
    if (port.device != options.device || !indexes.empty()) continue;
    options.address = port.address;
    indexes = port.gid_indexes;
  }
  REQUIRE_FALSE(indexes.empty());
  for (const int index : indexes) {
    options.gid_index = index;
    Stage stage(VerbsUnderTest(options));
    Pair pair(&stage);
    REQUIRE(pair.established);
    ibv_qp_attr attributes = {};
    ibv_qp_init_attr initial = {};
    REQUIRE(ibv_query_qp(verbs_shim().queue_pairs.back(), &attributes, IBV_QP_AV, &initial) == 0);
    CHECK(attributes.ah_attr.grh.sgid_index == index);
    // soft-RoCE has v2 alone.
    CHECK_THAT(pair.client.endpoint->settings(),
               Catch::Contains("GID index " + std::to_string(index) + " (RoCE v2)"));
  }
}

TEST_CASE(
    "relaxed ordering is requested for regions, never for windows, and bytes arrive with both") {
  const ShimReset reset;
  VerbsOptions options = TestVerbsOptions();
  options.relaxed_ordering = GENERATE(true, false);
  Stage stage(VerbsUnderTest(options));
  Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 8, 65536});
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 0, 65536, 7);
  REQUIRE(pair.Push(0, 65536, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(HasPattern(*pair.server_block, 0, 65536, 7));
  const std::vector<unsigned> registered = verbs_shim().registrations();
  REQUIRE_FALSE(registered.empty());
  for (const unsigned access : registered) {
    CHECK(((access & IBV_ACCESS_RELAXED_ORDERING) != 0) == options.relaxed_ordering);
  }
  REQUIRE_FALSE(verbs_shim().bind_access.empty());
  for (const unsigned access : verbs_shim().bind_access) CHECK(access == IBV_ACCESS_REMOTE_WRITE);
}

}  // namespace
}  // namespace verbena::rdma
