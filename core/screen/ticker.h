#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shardrun::screen {

/// Calls a function about once per interval, on a separate thread, until it is destroyed. The destructor waits for a
/// running call.
class Ticker {
 public:
  /// An exception of `tick` ends the ticking, and has no other effect.
  Ticker(std::chrono::milliseconds interval, std::function<void()> tick);
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;
  ~Ticker();

 private:
  std::mutex mutex_;  ///< guards ending_
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace shardrun::screen
