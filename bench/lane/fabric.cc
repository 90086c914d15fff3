#include "bench/lane/fabric.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"

namespace verbena::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kYieldEvery = 64;
constexpr Seconds kPatience(10);  // without any progress: something is broken
constexpr size_t kNameBytes = 128;

struct Close {
  template <typename T>
  void operator()(T* object) const {
    fi_close(&object->fid);
  }
};
template <typename T>
using Owned = std::unique_ptr<T, Close>;

absl::Status Error(const char* call, long error) {
  return absl::InternalError(absl::StrCat(call, ": ", fi_strerror(static_cast<int>(-error))));
}

// An endpoint with a registered buffer of `depth` payloads.
class Node {
 public:
  absl::Status Open(const FabricOptions& options, uint64_t key);
  absl::Status Introduce(const Node& peer);
  // -FI_EAGAIN: not now.
  ssize_t Write(uint32_t slot, uint64_t data) {
    std::byte* const from = buffer_.data() + size_t{slot} * options_.bytes;
    return fi_writedata(ep_.get(), from, options_.bytes, nullptr, data, peer_,
                        size_t{slot} * options_.bytes, peer_key_, &contexts_[slot]);
  }
  // Adds the writes sent and the writes received since.
  absl::Status Poll(uint64_t* sent, uint64_t* arrived);

 private:
  FabricOptions options_;
  std::vector<std::byte> buffer_;
  std::vector<fi_context2> contexts_;
  std::unique_ptr<fi_info, void (*)(fi_info*)> info_{nullptr, fi_freeinfo};
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_mr> region_;
  Owned<fid_cq> cq_;
  Owned<fid_av> av_;
  Owned<fid_ep> ep_;
  char name_[kNameBytes] = {};
  uint64_t key_ = 0;
  uint64_t peer_key_ = 0;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

absl::Status Node::Open(const FabricOptions& options, uint64_t key) {
  options_ = options;
  key_ = key;
  buffer_.assign(size_t{options.bytes} * options.depth, std::byte{1});
  contexts_.resize(options.depth);
  std::unique_ptr<fi_info, void (*)(fi_info*)> hints(fi_allocinfo(), fi_freeinfo);
  if (hints == nullptr) return absl::ResourceExhaustedError("fi_allocinfo");
  hints->fabric_attr->prov_name = strdup(options.provider.c_str());
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  fi_info* info = nullptr;
  int error = fi_getinfo(FI_VERSION(1, 17), options.address.c_str(), nullptr, FI_SOURCE,
                         hints.get(), &info);
  if (error != 0) return Error("fi_getinfo", error);
  info_.reset(info);
  fid_fabric* fabric = nullptr;
  if ((error = fi_fabric(info->fabric_attr, &fabric, nullptr)) != 0) return Error("fabric", error);
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  if ((error = fi_domain(fabric, info, &domain, nullptr)) != 0) return Error("fi_domain", error);
  domain_.reset(domain);
  fid_mr* region = nullptr;
  error = fi_mr_reg(domain, buffer_.data(), buffer_.size(), FI_REMOTE_WRITE, 0, key, 0, &region,
                    nullptr);
  if (error != 0) return Error("fi_mr_reg", error);
  region_.reset(region);
  fi_cq_attr queue = {};
  queue.format = FI_CQ_FORMAT_DATA;
  queue.size = 1024;
  queue.wait_obj = FI_WAIT_NONE;
  fid_cq* cq = nullptr;
  if ((error = fi_cq_open(domain, &queue, &cq, nullptr)) != 0) return Error("fi_cq_open", error);
  cq_.reset(cq);
  fi_av_attr addresses = {};
  addresses.type = FI_AV_MAP;
  fid_av* av = nullptr;
  if ((error = fi_av_open(domain, &addresses, &av, nullptr)) != 0) return Error("av", error);
  av_.reset(av);
  fid_ep* ep = nullptr;
  if ((error = fi_endpoint(domain, info, &ep, nullptr)) != 0) return Error("fi_endpoint", error);
  ep_.reset(ep);
  error = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
  if (error == 0) error = fi_ep_bind(ep, &av->fid, 0);
  if (error == 0) error = fi_enable(ep);
  size_t bytes = sizeof(name_);
  if (error == 0) error = fi_getname(&ep->fid, name_, &bytes);
  return error == 0 ? absl::OkStatus() : Error("fi_enable", error);
}

absl::Status Node::Introduce(const Node& peer) {
  peer_key_ = peer.key_;
  const int count = fi_av_insert(av_.get(), peer.name_, 1, &peer_, 0, nullptr);
  return count == 1 ? absl::OkStatus() : Error("fi_av_insert", count);
}

absl::Status Node::Poll(uint64_t* sent, uint64_t* arrived) {
  fi_cq_data_entry entries[32];
  const ssize_t count = fi_cq_read(cq_.get(), entries, 32);
  if (count < 0 && count != -FI_EAGAIN) return Error("fi_cq_read", count);
  for (ssize_t i = 0; i < count; ++i) {
    ++*((entries[i].flags & FI_REMOTE_CQ_DATA) != 0 ? arrived : sent);
  }
  return absl::OkStatus();
}

struct Two {
  Node here, there;
  absl::Status Open(const FabricOptions& options) {
    absl::Status status = here.Open(options, 1);
    if (status.ok()) status = there.Open(options, 2);
    if (status.ok()) status = here.Introduce(there);
    if (status.ok()) status = there.Introduce(here);
    return status;
  }
};

void YieldNowAndThen(int* turns) {
  if (++*turns % kYieldEvery == 0) sched_yield();
}

// The receiver of a stream: `arrived` is how many there were so far.
absl::Status Receive(Node* node, const std::atomic<bool>* stop, std::atomic<uint64_t>* arrived) {
  uint64_t sent = 0, got = 0;
  int turns = 0;
  while (!stop->load(std::memory_order_relaxed)) {
    const uint64_t before = got;
    if (absl::Status status = node->Poll(&sent, &got); !status.ok()) return status;
    arrived->store(got, std::memory_order_relaxed);
    if (got == before) YieldNowAndThen(&turns);
  }
  return absl::OkStatus();
}

// Answers each write by one.
absl::Status Answer(Node* node, const std::atomic<bool>* stop) {
  uint64_t sent = 0, got = 0, answered = 0;
  int turns = 0;
  while (!stop->load(std::memory_order_relaxed)) {
    if (absl::Status status = node->Poll(&sent, &got); !status.ok()) return status;
    if (answered < got) {
      const ssize_t error = node->Write(0, answered);
      if (error == 0) ++answered;
      if (error != 0 && error != -FI_EAGAIN) return Error("fi_writedata", error);
    } else {
      YieldNowAndThen(&turns);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Stream(Node* node, const FabricOptions& options, double seconds,
                              const std::atomic<uint64_t>& arrived) {
  uint64_t posted = 0, sent = 0, got = 0, first = 0;
  int turns = 0;
  const Seconds warm_up(0.2);
  const auto start = Clock::now();
  auto begin = start;
  auto moved = start;
  uint64_t last = 0;
  while (true) {
    bool worked = false;
    while (posted - sent < options.depth) {
      const ssize_t error = node->Write(static_cast<uint32_t>(posted % options.depth), posted);
      if (error == -FI_EAGAIN) break;
      if (error != 0) return Error("fi_writedata", error);
      ++posted;
      worked = true;
    }
    if (absl::Status status = node->Poll(&sent, &got); !status.ok()) return status;
    if (!worked) YieldNowAndThen(&turns);
    const auto now = Clock::now();
    const uint64_t there = arrived.load(std::memory_order_relaxed);
    if (there != last) moved = now;
    last = there;
    if (now - moved > kPatience) return absl::InternalError("the limit's stream is stuck");
    if (begin == start && there > 0 && now - start > warm_up) {
      begin = now;
      first = there;
    } else if (begin != start && now - begin > Seconds(seconds)) {
      const double total = static_cast<double>(there - first) * options.bytes;
      return total / Seconds(now - begin).count() / 1e6;
    }
  }
}

absl::StatusOr<FabricTimes> PingPong(Node* node, double seconds) {
  std::vector<double> micros;
  uint64_t sent = 0, got = 0, posted = 0;
  int turns = 0;
  const auto start = Clock::now();
  while (Clock::now() - start < Seconds(seconds) || micros.size() < 100) {
    const auto begin = Clock::now();
    if (begin - start > kPatience + Seconds(seconds)) return absl::InternalError("stuck");
    ssize_t error = -FI_EAGAIN;
    while (error == -FI_EAGAIN) {
      error = node->Write(0, posted);
      if (absl::Status status = node->Poll(&sent, &got); !status.ok()) return status;
      if (Clock::now() - begin > kPatience) return absl::InternalError("the limit is stuck");
    }
    if (error != 0) return Error("fi_writedata", error);
    ++posted;
    while (got < posted || sent < posted) {
      if (absl::Status status = node->Poll(&sent, &got); !status.ok()) return status;
      YieldNowAndThen(&turns);
      if (Clock::now() - begin > kPatience) return absl::InternalError("the limit is stuck");
    }
    micros.push_back(Seconds(Clock::now() - begin).count() * 1e6);
  }
  micros.erase(micros.begin(), micros.begin() + static_cast<long>(micros.size() / 10));
  std::sort(micros.begin(), micros.end());
  return FabricTimes{micros[micros.size() / 2], micros[micros.size() * 99 / 100]};
}

}  // namespace

absl::StatusOr<double> FabricMegabytes(const FabricOptions& options, double seconds) {
  Two two;
  if (absl::Status status = two.Open(options); !status.ok()) return status;
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> arrived = 0;
  absl::Status received;
  std::thread receiver([&] {
    PinToCpu(1);
    received = Receive(&two.there, &stop, &arrived);
  });
  PinToCpu(0);
  absl::StatusOr<double> result = Stream(&two.here, options, seconds, arrived);
  stop = true;
  receiver.join();
  if (!received.ok()) return received;
  return result;
}

absl::StatusOr<FabricTimes> FabricRoundTrip(const FabricOptions& options, double seconds) {
  Two two;
  if (absl::Status status = two.Open(options); !status.ok()) return status;
  std::atomic<bool> stop = false;
  absl::Status answered;
  std::thread peer([&] {
    PinToCpu(1);
    answered = Answer(&two.there, &stop);
  });
  PinToCpu(0);
  absl::StatusOr<FabricTimes> result = PingPong(&two.here, seconds);
  stop = true;
  peer.join();
  if (!answered.ok()) return answered;
  return result;
}

}  // namespace verbena::bench
