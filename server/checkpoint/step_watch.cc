#include "server/checkpoint/step_watch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "server/checkpoint/shard_calls.h"

namespace verbena::server {

void StepWatch::Ask(Done done) {
  done_ = std::move(done);
  Call<v1::GetViewResponse>(control_, coordinator_, "/verbena.v1.Cluster/GetView",
                            v1::GetViewRequest(), absl::Milliseconds(kShardCallMillis),
                            [this, alive = alive_](auto response) {
                              if (*alive) OnView(std::move(response));
                            });
}

void StepWatch::OnView(absl::StatusOr<v1::GetViewResponse> response) {
  steps_.clear();
  // The view of an earlier answer may lack the present jobs.
  if (!response.ok()) return done_(nullptr, steps_);
  view_ = std::move(*response->mutable_view());
  std::set<std::string> servers;
  for (const ShardAddress& shard : PrimaryShards(view_)) servers.insert(shard.address);
  if (servers.empty()) return done_(&view_, steps_);
  asked_ = servers.size();
  for (const std::string& address : servers) {
    Call<v1::GetStatisticsResponse>(
        control_, address, "/verbena.v1.Shard/GetStatistics", v1::GetStatisticsRequest(),
        absl::Milliseconds(kShardCallMillis), [this, alive = alive_](auto said) {
          if (*alive) OnStatistics(said);
        });
  }
}

void StepWatch::OnStatistics(const absl::StatusOr<v1::GetStatisticsResponse>& response) {
  std::map<uint32_t, uint64_t> steps;
  if (response.ok()) {
    for (const v1::ShardStatistics& shard : response->shards()) {
      for (const v1::TableStatistics& table : shard.tables()) {
        steps[table.table()] = std::max(steps[table.table()], table.step());
      }
    }
  }
  for (const v1::Table& table : view_.tables()) {
    const auto known = steps.find(table.id());
    if (known == steps.end() || table.restoring()) continue;
    if (table.spec().consistency() != v1::CONSISTENCY_SYNC) continue;
    uint64_t& farthest = steps_[table.spec().job()];
    farthest = std::max(farthest, table.restored_steps() + known->second);
  }
  if (--asked_ == 0) done_(&view_, steps_);
}

}  // namespace verbena::server
