// GPUDirect over a real device (or a soft one): memory of imitated GPUs is written from and to by
// RDMA, and the selection of the transfer path.
#include "rdma/verbs/gpu_direct.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tests/rdma/cuda_fixture.h"
#include "tests/rdma/fake_gpu_direct.h"
#include "tests/rdma/transport_conformance.h"
#include "tests/rdma/verbs_fixture.h"

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;
using Kind = ConnectionEvent::Kind;

// A folder in place of /sys: the test's own.
class FakeSys {
 public:
  FakeSys() : path_(std::filesystem::temp_directory_path() / "verbena-fake-sys") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~FakeSys() { std::filesystem::remove_all(path_); }
  void Add(const std::string& folder) { std::filesystem::create_directories(path_ / folder); }
  void Write(const std::string& folder, const std::string& file, const std::string& text) {
    Add(folder);
    std::ofstream(path_ / folder / file) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

struct World {
  World() { fake_kernel() = {}; }
  ~World() { fake_kernel() = {}; }

  VerbsOptions Options() const {
    VerbsOptions options = TestVerbsOptions();
    options.sysfs = sys.path();
    return options;
  }
  void UsePeerMemory() {
    fake_kernel().dma_bufs = FakeKernel::DmaBufs::kNotTaken;
    fake_kernel().peer_memory = true;
    sys.Add("module/nvidia_peermem");
  }

  CudaFixture cuda;
  FakeSys sys;
};

std::vector<uint8_t> Numbers(size_t bytes, uint8_t from) {
  std::vector<uint8_t> numbers(bytes);
  std::iota(numbers.begin(), numbers.end(), from);
  return numbers;
}

std::shared_ptr<MemoryBlock> GpuBlock(const std::shared_ptr<Device>& device, size_t bytes,
                                      uint8_t from) {
  auto block = MemoryBlock::AllocateOn(device, bytes).value();
  const std::vector<uint8_t> numbers = Numbers(bytes, from);
  REQUIRE(fake_cuda_write(block->data(), numbers.data(), bytes));
  return block;
}

std::vector<uint8_t> HostBytes(const MemoryBlock& block, size_t offset, size_t bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(block.data()) + offset;
  return {data, data + bytes};
}

absl::Status Write(Endpoint* endpoint, ConnectionId connection, absl::Span<const Segment> segments,
                   const RemoteMemory& remote) {
  WriteRequest request;
  request.segments = segments;
  request.remote = remote;
  request.immediate = 9;
  return endpoint->PostWrite(connection, request);
}

TEST_CASE("gpu direct: writes read from and land in memory that the host cannot touch") {
  const bool dma_buf = GENERATE(true, false);
  const bool windows = GENERATE(true, false);
  INFO((dma_buf ? "dma-buf" : "peer memory") << (windows ? ", windows" : ""));
  World world;
  if (!dma_buf) world.UsePeerMemory();
  const auto device = OpenCudaDevice(0).value();
  VerbsOptions options = world.Options();
  options.memory_windows = windows;
  Stage stage(VerbsUnderTest(options));
  Pair::Options sizes;
  sizes.client_receives = sizes.server_receives = 8;
  Pair pair(&stage, sizes);
  REQUIRE(pair.established);
  const DevicePath path = pair.client.endpoint->PathTo(*device);
  CHECK(path.route == (dma_buf ? DeviceRoute::kDmaBuf : DeviceRoute::kPeerMemory));

  const auto source = GpuBlock(device, 50'000, 3);
  REQUIRE(pair.client.endpoint->Register(source).ok());
  FillPattern(*pair.client_block, 0, 64, 7);
  const Segment segments[] = {{pair.client_block->data(), 64, pair.client_block.get()},
                              {source->data() + 1000, 40'000, source.get()}};
  REQUIRE(Write(pair.client.endpoint.get(), pair.c, segments, pair.At(128)).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 1; }));
  CHECK(HostBytes(*pair.server_block, 128, 64) == HostBytes(*pair.client_block, 0, 64));
  const std::vector<uint8_t> sent = Numbers(50'000, 3);
  CHECK(HostBytes(*pair.server_block, 128 + 64, 40'000) ==
        std::vector<uint8_t>(sent.begin() + 1000, sent.begin() + 41'000));

  // So few bytes that the processor would copy them, if they were the host's.
  const Segment few[] = {{source->data() + 5, 16, source.get()}};
  REQUIRE(Write(pair.client.endpoint.get(), pair.c, few, pair.At(0)).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 2; }));
  CHECK(HostBytes(*pair.server_block, 0, 16) ==
        std::vector<uint8_t>(sent.begin() + 5, sent.begin() + 21));

  const auto destination = GpuBlock(device, 50'000, 0);
  const RemoteMemory there =
      pair.client.endpoint->Expose(pair.c, destination, 2000, 30'000).value();
  FillPattern(*pair.server_block, 0, 30'000, 21);
  const std::vector<uint8_t> expected = HostBytes(*pair.server_block, 0, 30'000);
  // By invariant of Expose(): the peer may use it once it has a write posted after it.
  REQUIRE(pair.Push(0, 16, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 3; }));
  FillPattern(*pair.server_block, 0, 30'000, 21);
  const Segment back[] = {{pair.server_block->data(), 30'000, pair.server_block.get()}};
  REQUIRE(Write(pair.server.endpoint.get(), pair.s, back, there).ok());
  REQUIRE(stage.Until([&] { return pair.client.Receives(pair.c).size() == 1; }));
  const std::vector<uint8_t> now = OnDevice(*destination);
  CHECK(std::vector<uint8_t>(now.begin() + 2000, now.begin() + 32'000) == expected);
  const std::vector<uint8_t> before = Numbers(50'000, 0);
  CHECK(std::equal(now.begin(), now.begin() + 2000, before.begin()));
  CHECK(std::equal(now.begin() + 32'000, now.end(), before.begin() + 32'000));
  CHECK(fake_cuda_counts().copies == 0);
  CHECK((fake_kernel().dma_buf_regions > 0) == dma_buf);
  CHECK((fake_kernel().peer_regions > 0) == !dma_buf);

  // Memory that is no longer exposed cannot be written to.
  pair.client.endpoint->Unexpose(pair.c, there);
  REQUIRE(Write(pair.server.endpoint.get(), pair.s, back, there).ok());
  CHECK(stage.Until([&] { return pair.server.Count(Kind::kLost, pair.s) == 1; }));
  CHECK(OnDevice(*destination) == now);
}

TEST_CASE("gpu direct: freeing memory ends its registrations") {
  World world;
  const int before = OpenDescriptors();
  {
    const auto endpoint = NewTestEndpoint(world.Options());
    const int with_endpoint = OpenDescriptors();
    for (int i = 0; i < 50; ++i) {
      const auto device = OpenCudaDevice(0).value();
      const auto block = GpuBlock(device, 8192, 1);
      REQUIRE(endpoint->Register(block).ok());
    }
    CHECK(OpenDescriptors() == with_endpoint);
  }
  CHECK(OpenDescriptors() <= before + 1);  // librdmacm keeps one of its own
}

TEST_CASE("gpu direct: the transfer path, and the reason for it") {
  World world;
  const auto device = OpenCudaDevice(0).value();
  const auto choose = [&](GpuDirectUse use = GpuDirectUse::kAuto) {
    VerbsOptions options = world.Options();
    options.gpu_direct = use;
    return NewTestEndpoint(options)->PathTo(*device);
  };
  CHECK(choose().route == DeviceRoute::kDmaBuf);
  CHECK(choose().reason.empty());
  CHECK(choose(GpuDirectUse::kOff).route == DeviceRoute::kStaging);
  CHECK_THAT(choose(GpuDirectUse::kOff).reason, Contains("turned off"));

  fake_kernel().dma_bufs = FakeKernel::DmaBufs::kNotTaken;
  CHECK(choose().route == DeviceRoute::kStaging);
  CHECK_THAT(choose().reason, Contains("takes no dma-buf") && Contains("modprobe nvidia_peermem"));
  world.sys.Add("module/nvidia_peermem");
  CHECK(choose().route == DeviceRoute::kPeerMemory);
  CHECK_THAT(choose().reason, Contains("takes no dma-buf"));
}

TEST_CASE("gpu direct: soft-RoCE's own driver takes no dma-buf, and the reason names that") {
  World world;
  fake_kernel().dma_bufs = FakeKernel::DmaBufs::kReal;
  const auto device = OpenCudaDevice(0).value();
  const auto endpoint = NewTestEndpoint(world.Options());
  if (endpoint->device().find("rxe") != 0) return;
  CHECK(endpoint->PathTo(*device).route == DeviceRoute::kStaging);
  CHECK_THAT(endpoint->PathTo(*device).reason, Contains("takes no dma-buf"));
}

// A GPU that is near a NUMA node.
class NearDevice final : public Device {
 public:
  int ordinal() const override { return 0; }
  std::string name() const override { return "near:0"; }
  PeerAccess Access() const override { return {true, false, "", 0}; }
  absl::StatusOr<std::byte*> Allocate(size_t) override { return absl::UnimplementedError(""); }
  void Free(std::byte*) override {}
  absl::Status CheckMemory(const std::byte*, size_t) override { return absl::OkStatus(); }
  absl::Status Pin(std::byte*, size_t) override { return absl::OkStatus(); }
  void Unpin(std::byte*) override {}
  absl::StatusOr<std::unique_ptr<Mark>> MarkStream(uintptr_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<uint64_t> StartCopy(Direction, const std::byte*, std::byte*, size_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<uint64_t> StartCopies(Direction, absl::Span<const Copy>) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<uint64_t> CopiesDone(Direction) override { return 0; }
};

TEST_CASE("gpu direct: a GPU far from the NIC is staged, unless it is required") {
  World world;
  NearDevice device;
  const std::string nic = NewTestEndpoint(world.Options())->device();
  const std::string folder = "class/infiniband/" + nic.substr(0, nic.find(':')) + "/device";
  const auto choose = [&](GpuDirectUse use) {
    VerbsOptions options = world.Options();
    options.gpu_direct = use;
    return NewTestEndpoint(options)->PathTo(device);
  };
  world.sys.Write(folder, "numa_node", "0\n");
  CHECK(choose(GpuDirectUse::kAuto).route == DeviceRoute::kDmaBuf);
  world.sys.Write(folder, "numa_node", "1\n");
  CHECK(choose(GpuDirectUse::kAuto).route == DeviceRoute::kStaging);
  CHECK_THAT(choose(GpuDirectUse::kAuto).reason,
             Contains("near NUMA node 0") && Contains("near 1"));
  CHECK(choose(GpuDirectUse::kRequired).route == DeviceRoute::kDmaBuf);
}

TEST_CASE("gpu direct: the error of a refused registration has the remedy, and nothing is kept") {
  World world;
  const bool dma_buf = GENERATE(true, false);
  if (!dma_buf) world.UsePeerMemory();
  const auto device = OpenCudaDevice(0).value();
  const auto endpoint = NewTestEndpoint(world.Options());
  const auto block = GpuBlock(device, 8192, 1);
  fake_kernel().refuse = ENOMEM;
  absl::Status status = endpoint->Register(block);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Says(status, "cannot register 8192 bytes of cuda:0 (Fake GPU 0) with RDMA device "));
  CHECK(Says(status, dma_buf ? "(dma-buf)" : "(peer memory)"));
  CHECK(Says(status, "BAR1"));
  fake_kernel().refuse = EINVAL;
  CHECK(Says(endpoint->Register(block), "nvidia_peermem"));
  if (dma_buf) {
    fake_cuda_fail_next("cuMemGetHandleForAddressRange", 801);
    CHECK(Says(endpoint->Register(block), "cuMemGetHandleForAddressRange"));
  }
  CHECK(endpoint->Register(block).ok());
}

TEST_CASE("gpu direct: memory that the NIC does not reach is not registered") {
  World world;
  fake_kernel().dma_bufs = FakeKernel::DmaBufs::kNotTaken;
  const auto device = OpenCudaDevice(0).value();
  const auto endpoint = NewTestEndpoint(world.Options());
  const absl::Status status = endpoint->Register(GpuBlock(device, 8192, 1));
  CHECK(absl::IsUnimplemented(status));
  CHECK(Says(status, "takes no dma-buf"));
}

}  // namespace
}  // namespace verbena::rdma
