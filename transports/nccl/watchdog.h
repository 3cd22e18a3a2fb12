#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

namespace shardrun::nccl_transport {

class NcclGroup;

/// Advances the ops of groups that no thread polls, and fails ops at their deadlines.
class Watchdog {
 public:
  Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  void add(NcclGroup& group);
  void remove(NcclGroup& group);

 private:
  void work();

  std::mutex mutex_;  ///< locked before a group's mutex
  std::condition_variable changed_;
  std::list<NcclGroup*> groups_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace shardrun::nccl_transport
