#include "tests/faults/random_faults_client.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/faults/random_faults_calls.h"
#include "tests/faults/random_faults_load.h"

namespace verbena::test {
namespace {

// The ledger's entries of clients that are not in the plan: one for each process.
constexpr int kVisitorEntries = 32, kChangerEntries = 48;

ClientOptions OptionsOf(const Run& run, int job, const std::string& transport) {
  ClientOptions options;
  options.cluster = run.cluster;
  options.job = run.plan.jobs[job].name;
  options.expected_workers = static_cast<uint32_t>(run.plan.jobs[job].clients);
  options.transport = transport;
  options.timeout = absl::Seconds(run.options.call_s);
  return options;
}

std::unique_ptr<Client> Connect(const ClientOptions& options, CallCheck* calls) {
  const CallCheck::Call call = calls->Begin("Connect to", options.job);
  auto client = Client::Connect(options);
  if (!calls->End(call, client.status())) return nullptr;
  return *std::move(client);
}

std::vector<OpenTable> TablesOf(const Run& run, int job, bool create, Client* client,
                                CallCheck* calls) {
  std::vector<OpenTable> tables;
  for (const int index : run.plan.jobs[job].tables) {
    const TablePlan& plan = run.plan.tables[index];
    const CallCheck::Call call = calls->Begin(create ? "CreateTable" : "OpenTable", plan.name);
    auto table =
        create ? client->CreateTable(SpecOf(run.plan, plan)) : client->OpenTable(plan.name);
    if (!calls->End(call, table.status())) return {};
    tables.push_back({plan, *std::move(table), &run.ledger->table(index)});
  }
  return tables;
}

bool HasSyncTable(const Run& run, int job) {
  const std::vector<int>& tables = run.plan.jobs[job].tables;
  return std::any_of(tables.begin(), tables.end(), [&](int index) {
    return run.plan.tables[index].consistency == v1::CONSISTENCY_SYNC;
  });
}

// Tables that this client alone uses, one after the other, until the run ends.
void MakeAndDropTables(const Run& run, const ClientPlan& plan, Client* client) {
  CallCheck calls(run.ledger, kChangerEntries + plan.job,
                  absl::StrCat("tables that come and go of ", run.plan.jobs[plan.job].name),
                  absl::Seconds(run.options.call_s));
  Draw draw(run.options.seed * 1000 + 500 + static_cast<uint64_t>(plan.job));
  const auto counts = std::make_unique<TableLedger>();
  for (int round = 0; run.ledger->running(); ++round) {
    TablePlan table;
    table.job = plan.job;
    table.kind = draw.Of<TableKind>({TableKind::kDense, TableKind::kRows, TableKind::kCold});
    table.width = table.embedding() ? 8 : 1024;
    table.units = table.embedding() ? draw.Between(100, 2000) : draw.Between(1, 16);
    table.name = absl::StrCat("passing-", NameOf(table.kind), "-", plan.job, "-", round);
    for (uint64_t unit = 0; unit < table.units; ++unit) {
      counts->attempted[unit] = 0;
      counts->acked[unit] = 0;
    }
    CallCheck::Call call = calls.Begin("CreateTable", table.name);
    auto handle = client->CreateTable(SpecOf(run.plan, table));
    if (!calls.End(call, handle.status())) return;
    const OpenTable open = {table, *std::move(handle), counts.get()};
    Pusher pusher(client, &calls, open, Pusher::Role::kVisitor, draw.Between(0, UINT32_MAX));
    Reader reader(client, &calls, {open}, !plan.caller_progress, draw.Between(0, UINT32_MAX));
    // Some live through several faults, some through none.
    const absl::Time end = absl::Now() + absl::Milliseconds(draw.Between(100, 6000));
    while (absl::Now() < end && run.ledger->running()) {
      if (!pusher.Round() || !reader.Read()) return;
    }
    if (!reader.ReadAll(open)) return;
    call = calls.Begin("DropTable", table.name);
    if (!calls.End(call, client->DropTable(table.name))) return;
  }
}

}  // namespace

void RunClient(const Run& run, const ClientPlan& plan) {
  CallCheck calls(run.ledger, plan.index,
                  absl::StrCat("client ", plan.index, " (", plan.transport, ")"),
                  absl::Seconds(run.options.call_s));
  ClientOptions options = OptionsOf(run, plan.job, plan.transport);
  options.rank = plan.rank;
  options.name = absl::StrCat("client-", plan.index);
  if (plan.caller_progress) options.progress = ClientOptions::Progress::kCaller;
  const std::unique_ptr<Client> client = Connect(options, &calls);
  if (client == nullptr) return;
  const std::vector<OpenTable> tables = TablesOf(run, plan.job, true, client.get(), &calls);
  if (tables.empty()) return;
  run.ledger->client(plan.index).ready.store(1);

  const uint64_t seed = run.options.seed * 1000 + static_cast<uint64_t>(plan.index) * 10;
  std::vector<std::thread> threads;
  for (const OpenTable& table : tables) {
    threads.emplace_back([&, seed = seed + threads.size()] {
      const auto role = plan.rank == 0 ? Pusher::Role::kLeader : Pusher::Role::kMember;
      Pusher pusher(client.get(), &calls, table, role, seed);
      while (pusher.Round()) {
      }
    });
  }
  threads.emplace_back([&, seed = seed + threads.size()] {
    Reader reader(client.get(), &calls, tables, !plan.caller_progress, seed);
    while (run.ledger->running() && reader.Read()) {
    }
  });
  if (plan.rank == 0 && run.options.changes) {
    threads.emplace_back([&] { MakeAndDropTables(run, plan, client.get()); });
  }
  for (std::thread& thread : threads) thread.join();
  client->Close();
}

void RunVisitors(const Run& run, int process) {
  CallCheck calls(run.ledger, kVisitorEntries + process, absl::StrCat("visitors ", process),
                  absl::Seconds(run.options.call_s));
  Draw draw(run.options.seed * 1000 + 900 + static_cast<uint64_t>(process));
  const int jobs = static_cast<int>(run.plan.jobs.size());
  const int job = process % jobs;
  // Its tables are there once a client of it is ready, and the ranks of all are taken when all are.
  for (const ClientPlan& client : run.plan.clients) {
    while (client.job == job && run.ledger->client(client.index).ready.load() == 0) {
      if (!run.ledger->running()) return;
      absl::SleepFor(absl::Milliseconds(20));  // between looks at the condition
    }
  }
  while (run.ledger->running()) {
    const bool reads = HasSyncTable(run, job) || draw.OneIn(2);
    const bool shm = draw.OneIn(2);
    const std::string transport = run.options.transport != "mixed" ? run.options.transport
                                  : shm                            ? "shm"
                                                                   : "ofi";
    ClientOptions options = OptionsOf(run, job, transport);
    options.name = absl::StrCat("visitor-", process);
    options.observer = reads;
    const std::unique_ptr<Client> client = Connect(options, &calls);
    if (client == nullptr) return;
    const std::vector<OpenTable> tables = TablesOf(run, job, false, client.get(), &calls);
    if (tables.empty()) return;
    const absl::Time end = absl::Now() + absl::Milliseconds(draw.Between(50, 4000));
    const auto over = [&] { return absl::Now() > end || !run.ledger->running(); };
    std::vector<std::thread> threads;
    if (!reads) {
      for (const OpenTable& table : tables) {
        threads.emplace_back([&, seed = draw.Between(0, UINT32_MAX)] {
          Pusher pusher(client.get(), &calls, table, Pusher::Role::kVisitor, seed);
          while (!over() && pusher.Round()) {
          }
        });
      }
    }
    Reader reader(client.get(), &calls, tables, true, draw.Between(0, UINT32_MAX));
    while (!over() && reader.Read()) {
    }
    for (std::thread& thread : threads) thread.join();
    client->Close();
    if (run.ledger->aborted()) return;
  }
}

void CheckSums(const Run& run) {
  CallCheck calls(run.ledger, LedgerMemory::kClients - 1, "check of the sums",
                  absl::Seconds(run.options.call_s));
  for (size_t job = 0; job < run.plan.jobs.size(); ++job) {
    ClientOptions options = OptionsOf(run, static_cast<int>(job), "auto");
    options.observer = true;
    const std::unique_ptr<Client> client = Connect(options, &calls);
    if (client == nullptr) return;
    const std::vector<OpenTable> tables =
        TablesOf(run, static_cast<int>(job), false, client.get(), &calls);
    Reader reader(client.get(), &calls, tables, true, 1);
    for (const OpenTable& table : tables) {
      if (!reader.ReadAll(table)) return;
    }
  }
}

}  // namespace verbena::test
