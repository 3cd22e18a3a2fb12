#pragma once

#include <shardrun/transport.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "plugins/loader/transport.h"

// Ranks as threads of one process, each with its own transport. The test's target defines SHARDRUN_BUILT_PLUGINS, the
// folder of the plugins.

namespace shardrun::test {

/// The deadline this many seconds from now, in nanoseconds of transport_clock().
[[nodiscard]] inline std::int64_t after(double seconds) {
  return plugins::transport_clock() + static_cast<std::int64_t>(seconds * 1e9);
}

/// The secret by which ranks authenticate each other.
inline constexpr std::array<std::uint8_t, 32> secret = {0x5A};

/// The host through which the ranks of one process rendezvous.
class SharedHost : public plugins::TransportHost {
 public:
  [[nodiscard]] bool aborted() const noexcept override { return aborted_; }
  void store_set(const std::string& key, std::string value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
    changed_.notify_all();
  }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override {
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
    if (!changed_.wait_until(lock, until, [&] { return values_.contains(key); })) {
      throw Error(ErrorCode::timeout, "nobody has set " + key);
    }
    return values_.at(key);
  }

  void abort() noexcept { aborted_ = true; }
  /// Waits until `n` threads have called this with the same place. Throws Error{aborted} if one of them has failed.
  void meet(const std::string& place, std::uint32_t n) {
    std::unique_lock lock(mutex_);
    ++met_[place];
    changed_.notify_all();
    changed_.wait(lock, [&] { return met_[place] >= n || has_lost_one_; });
    if (met_[place] < n) {
      throw Error(ErrorCode::aborted, "another rank has failed before it came to '" + place + "'");
    }
  }
  /// Records that a rank has failed, so that nobody waits for it any more.
  void lose_one() {
    const std::lock_guard lock(mutex_);
    has_lost_one_ = true;
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::uint32_t> met_;
  bool has_lost_one_ = false;
};

/// A rank with its own transport. Each runs on its own thread.
class Rank {
 public:
  Rank(SharedHost& host, const std::string& transport, std::uint32_t rank, std::uint32_t n,
       const std::string& address = "127.0.0.1", plugins::TransportSetup setup = {})
      : host_(host), rank_(rank), n_(n), transport_(plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, transport)) {
    setup.world_size = n;
    transport_.configure(std::move(setup));
    transport_.open({.rank = rank,
                     .world_size = n,
                     .local_rank = rank,
                     .local_world_size = n,
                     .job = "test",
                     .address = address,
                     .deadline = sdk::Deadline::from_border(after(30)),
                     .secret = secret},
                    host);
  }

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return n_; }
  [[nodiscard]] SharedHost& host() noexcept { return host_; }
  [[nodiscard]] plugins::Transport& transport() noexcept { return transport_; }
  void meet(const std::string& place) { host_.meet(place, n_); }

  /// A group of all ranks.
  [[nodiscard]] plugins::TransportGroup group(std::uint64_t id = 1, double seconds = 30) {
    std::vector<std::uint32_t> members(n_);
    std::iota(members.begin(), members.end(), 0U);
    return transport_.group({.rank = rank_,
                             .members = members,
                             .name = "all",
                             .id = id,
                             .deadline = sdk::Deadline::from_border(after(seconds))});
  }

 private:
  SharedHost& host_;
  std::uint32_t rank_;
  std::uint32_t n_;
  plugins::Transport transport_;
};

/// Runs `act` as each of n ranks. Rethrows the first exception.
inline void run_ranks(SharedHost& host, const std::string& transport, std::uint32_t n,
                      const std::function<void(Rank&)>& act, const plugins::TransportSetup& setup = {}) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < n; ++i) {
    threads.emplace_back([&, i] {
      try {
        Rank rank(host, transport, i, n, "127.0.0.1", setup);
        act(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        first = first ? first : std::current_exception();
        host.lose_one();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

inline void run_ranks(const std::string& transport, std::uint32_t n, const std::function<void(Rank&)>& act) {
  SharedHost host;
  run_ranks(host, transport, n, act);
}

template <class T>
[[nodiscard]] sdk::Buffer buffer_of(std::vector<T>& data) {
  return {data.data(), data.size() * sizeof(T)};
}

/// A request for `count` float32, in place.
[[nodiscard]] inline sdk::OpSpec request_of(std::uint32_t opcode, std::uint64_t id, std::uint64_t count,
                                            std::vector<float>& data, std::uint32_t peer = 0) {
  sdk::OpSpec request;
  request.opcode = opcode;
  request.dtype = SR_DTYPE_F32;
  request.reduction = SR_REDUCE_SUM;
  request.peer = peer;
  request.id = id;
  request.count = count;
  request.send = request.recv = buffer_of(data);
  return request;
}

inline void finish(plugins::TransportOp& op) {
  if (!op.wait(INT64_MAX)) {
    throw Error(ErrorCode::internal, "a wait without end ended");
  }
}

inline void run(plugins::TransportOp& op) {
  op.start(after(30));
  finish(op);
}

}  // namespace shardrun::test
