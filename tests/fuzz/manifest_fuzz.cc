// Any text as a manifest whose checksum is right: it is refused, with the name of the file, or is
// written again as it was read, and its reader opens no files but the checkpoint's.
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::fuzz {
namespace {

using checkpoint::HashText;
using checkpoint::Join;

// Manifests of models with few rows, so that mutations hit something.
std::vector<std::string> Manifests() {
  std::vector<std::string> texts;
  for (const bool slices : {false, true}) {
    checkpoint::test::SimDisk disk(1);
    checkpoint::test::Model model(1);
    for (auto& [table, rows] : model.rows) rows.erase(std::next(rows.begin(), 3), rows.end());
    const auto name = checkpoint::test::Save(&disk, "/c", model, {.slices = slices});
    std::string text = disk.Content(Join(Join("/c", *name), checkpoint::kManifestName));
    // The checksum's line is put behind it again.
    texts.push_back(text.substr(0, text.rfind(" \"checksum\"")));
  }
  return texts;
}

}  // namespace

std::vector<std::string> Seeds() { return Manifests(); }

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::checkpoint;
  google::protobuf::SetLogHandler(nullptr);
  const std::string body(reinterpret_cast<const char*>(data), size);
  const std::string text = body + " \"checksum\": \"" + HashText(body) + "\"\n}\n";
  const auto manifest = ParseManifest("/c/x/manifest.json", text);
  if (!manifest.ok()) {
    const std::string message(manifest.status().message());
    FUZZ_CHECK(message.find("/c/x/manifest.json") != std::string::npos);
    return 0;
  }
  const auto again = ManifestText(*manifest);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(ParseManifest("m", *again)->SerializeAsString() == manifest->SerializeAsString());
  test::SimDisk disk(1);
  (void)disk.MakeDirectory("/c");
  (void)disk.MakeDirectory("/c/x");
  disk.Put("/c/x/manifest.json", text);
  // Files that are smaller than their sizes in the manifest.
  for (const auto& file : manifest->files()) disk.Put("/c/x/" + file.name(), "{}");
  const auto reader = CheckpointReader::Open(&disk, "/c/x");
  if (!reader.ok()) return 0;
  (void)reader->CheckSizes();
  (void)reader->Verify([](uint64_t) { return absl::OkStatus(); });
  return 0;
}
