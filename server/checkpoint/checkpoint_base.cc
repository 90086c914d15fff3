#include "server/checkpoint/checkpoint_base.h"

#include <algorithm>

#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/manifest_check.h"

namespace verbena::server {
namespace {

bool HasRows(const v1::CheckpointManifest& manifest) {
  return std::any_of(manifest.tables().begin(), manifest.tables().end(),
                     [](const v1::CheckpointTable& table) { return table.spec().dim() > 0; });
}

}  // namespace

std::optional<CheckpointBaseOf> ChooseBase(checkpoint::Disk* disk, const std::string& root,
                                           const v1::CheckpointManifest& manifest,
                                           uint32_t full_every) {
  if (full_every <= 1 || !HasRows(manifest)) return std::nullopt;
  const auto newest = checkpoint::NewestComplete(disk, root, nullptr);
  if (!newest.ok()) return std::nullopt;
  checkpoint::Listed listed = checkpoint::ReadListed(disk, *newest);
  if (!listed.manifest.ok()) return std::nullopt;
  const bool known = listed.manifest->id() != 0 && listed.manifest->job() == manifest.job() &&
                     checkpoint::CheckBase(manifest, *listed.manifest).ok();
  if (!known) return std::nullopt;
  const CheckpointBaseOf base = {listed.name, listed.checksum, listed.manifest->id()};
  // This one, and those that it is based on.
  for (uint32_t links = 1; links < full_every; ++links) {
    if (!listed.manifest->has_base()) return base;
    // Its manifest does not list the partitions that it has whole: rows of its base that are gone
    // may count.
    if (listed.manifest->format_version() < checkpoint::kWholePartitionsVersion) break;
    listed = checkpoint::ReadListed(disk, checkpoint::Join(root, listed.manifest->base().name()));
    if (!listed.manifest.ok()) break;
  }
  return std::nullopt;
}

}  // namespace verbena::server
