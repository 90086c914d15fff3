// Messages from the peer of an ofi connection, or from a stranger at the listener.
#include "rdma/ofi/ofi_message.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (int type = 1; type <= 4; ++type) {
    rdma::OfiMessage message;
    message.type = static_cast<rdma::OfiMessageType>(type);
    message.secret = 0x12345678;
    message.doorbell = {1, 2};
    message.name = std::string(16, '\x02');
    message.provider = "tcp;ofi_rxm";
    message.text = std::string(32, 't');
    const rdma::OfiMessageBytes bytes = EncodeOfiMessage(message);
    seeds.emplace_back(bytes.data(), bytes.size());
  }
  return seeds;
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto message = rdma::DecodeOfiMessage(bytes);
  if (!message.ok()) return 0;
  FUZZ_CHECK(bytes.size() == rdma::kOfiMessageBytes);
  FUZZ_CHECK(message->name.size() <= rdma::kOfiNameBytes);
  FUZZ_CHECK(message->provider.size() <= rdma::kOfiProviderBytes);
  FUZZ_CHECK(message->text.size() <= rdma::kOfiTextBytes);
  // A decoded message encodes to the same bytes.
  const rdma::OfiMessageBytes again = EncodeOfiMessage(*message);
  const auto second = rdma::DecodeOfiMessage({again.data(), again.size()});
  FUZZ_CHECK(second.ok());
  FUZZ_CHECK(second->type == message->type && second->secret == message->secret);
  FUZZ_CHECK(second->name == message->name && second->text == message->text);
  FUZZ_CHECK(second->provider == message->provider);
  FUZZ_CHECK(second->doorbell.key == message->doorbell.key);
  return 0;
}
