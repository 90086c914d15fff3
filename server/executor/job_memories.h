// The memory of each job on one server, shared by the server's shards.
//
// **Thread safety**: all threads.
#ifndef VERBENA_SERVER_EXECUTOR_JOB_MEMORIES_H_
#define VERBENA_SERVER_EXECUTOR_JOB_MEMORIES_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "shard/job_memory.h"

namespace verbena::server {

class JobMemories {
 public:
  // Created when no shard has it. Takes a lock: shards call it when a view has a job that is new to
  // them.
  std::shared_ptr<shard::JobMemory> Of(const std::string& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(jobs_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<shard::JobMemory>& known = jobs_[job];
    std::shared_ptr<shard::JobMemory> memory = known.lock();
    if (memory == nullptr) known = memory = std::make_shared<shard::JobMemory>();
    return memory;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<shard::JobMemory>> jobs_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_JOB_MEMORIES_H_
