#pragma once

#include <shardrun/sdk/transport.hpp>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace shardrun::gloo_transport {

/// An object that the watchdog checks. The watchdog's thread calls both functions.
class Watched {
 public:
  Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  virtual void check() noexcept = 0;
  virtual void on_job_end() noexcept = 0;

 protected:
  ~Watched() = default;
};

/// A wait inside Gloo sees neither its op's deadline, nor the end of the job, nor always the loss of its peer. This
/// thread ends such a wait from outside, some milliseconds later. It runs while there is something to watch.
class Watchdog {
 public:
  explicit Watchdog(const sdk::TransportHost& host) : host_(host) {}
  /// REQUIRES: everything watched has been released.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(Watched& watched);
  /// Returns once `watched` is no longer being checked.
  void release(Watched& watched) noexcept;

 private:
  void check();

  sdk::TransportHost host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched*> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Watches something for as long as it lives.
class Watching {
 public:
  Watching(Watchdog& watchdog, Watched& watched) : watchdog_(watchdog), watched_(watched) { watchdog.watch(watched); }
  ~Watching() { watchdog_.release(watched_); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  Watchdog& watchdog_;
  Watched& watched_;
};

}  // namespace shardrun::gloo_transport
