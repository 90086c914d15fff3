#include "server/balance/load_watch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace verbena::server {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

}  // namespace

void LoadWatch::Ask(Done done) {
  done_ = std::move(done);
  Call<v1::GetViewResponse>(control_, coordinator_, "/verbena.v1.Cluster/GetView",
                            v1::GetViewRequest(), kCallTimeout,
                            [this, alive = alive_](absl::StatusOr<v1::GetViewResponse> response) {
                              if (*alive) OnView(std::move(response));
                            });
}

void LoadWatch::OnView(absl::StatusOr<v1::GetViewResponse> response) {
  if (!response.ok()) return done_(response.status());
  load_ = {};
  problem_ = absl::OkStatus();
  for (const v1::FullServer& server : response->full_servers()) {
    load_.full.insert(server.incarnation());
  }
  load_.view = std::move(*response->mutable_view());
  std::vector<v1::Server> servers;
  for (const v1::Server& server : load_.view.servers()) {
    if (server.state() == v1::Server::ALIVE) servers.push_back(server);
  }
  if (servers.empty()) return done_(std::move(load_));
  asked_ = servers.size();
  v1::GetStatisticsRequest request;
  request.set_partitions(true);
  for (const v1::Server& server : servers) {
    Call<v1::GetStatisticsResponse>(
        control_, server.address(), "/verbena.v1.Shard/GetStatistics", request, kCallTimeout,
        [this, alive = alive_, server](absl::StatusOr<v1::GetStatisticsResponse> report) {
          if (*alive) OnReport(server, std::move(report));
        });
  }
}

void LoadWatch::OnReport(const v1::Server& server,
                         absl::StatusOr<v1::GetStatisticsResponse> response) {
  if (!response.ok()) {
    problem_ = absl::UnavailableError(absl::StrCat(
        "server '", server.name(), "' has not reported: ", response.status().message()));
  } else if (response->incarnation() != server.incarnation()) {
    problem_ = absl::UnavailableError(
        absl::StrCat("another process answers at the address of server '", server.name(), "'"));
  } else {
    load_.reports[server.incarnation()] = *std::move(response);
  }
  if (--asked_ > 0) return;
  if (!problem_.ok()) return done_(problem_);
  done_(std::move(load_));
}

}  // namespace verbena::server
