#include "transports/nccl/watchdog.h"

#include <chrono>

#include "transports/nccl/group.h"

namespace shardrun::nccl_transport {

Watchdog::Watchdog() : thread_([this] { work(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(NcclGroup& group) {
  {
    const std::lock_guard lock(mutex_);
    groups_.push_back(&group);
  }
  changed_.notify_all();
}

void Watchdog::remove(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.remove(&group);
}

void Watchdog::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (groups_.empty()) {
      changed_.wait(lock);
      continue;
    }
    for (NcclGroup* const group : groups_) {
      group->watch();
    }
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

}  // namespace shardrun::nccl_transport
