#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

namespace shardrun::metrics {

/// Starts a thread that blocks all signals except SIGPIPE, which belongs to the thread that writes. Signals that ask
/// this process to stop go to other threads. `purpose` is for the message. Throws Error{io} if there can be no thread.
[[nodiscard]] std::thread thread_without_signals(std::string_view purpose, std::function<void()> run);

/// Calls a function about once an interval, on a thread of its own, until destruction. The destructor waits for a
/// running call.
class Ticker {
 public:
  /// An exception of `tick` ends the ticking and nothing else.
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

}  // namespace shardrun::metrics
