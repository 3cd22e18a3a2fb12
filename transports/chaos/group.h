#pragma once

#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transports/chaos/faults.h"
#include "transports/chaos/inner.h"

namespace shardrun::chaos {

class DisturbedOp;
class DisturbedGroup;

/// What the groups of a rank that something happens on share.
class Disturbance {
 public:
  Disturbance(const Inner& inner, const Faults& faults, std::uint32_t rank, const sdk::Host& log,
              const sdk::TransportHost& host);
  Disturbance(const Disturbance&) = delete;
  Disturbance& operator=(const Disturbance&) = delete;
  /// All groups are gone.
  ~Disturbance();

  /// The number of the op that is about to start. Does not return where the rank dies at it.
  [[nodiscard]] std::uint64_t count(const std::string& what);
  /// Whether this op is the one whose result is spoilt.
  [[nodiscard]] bool corrupts(std::uint64_t number) noexcept;
  [[nodiscard]] bool has_begun(Fault fault, std::uint64_t number) const noexcept {
    return faults_.fault == fault && number >= faults_.at_op;
  }
  /// The first time alone.
  void tell_once(const std::string& line);
  void tell(const std::string& line) const;
  /// Says so where the fault has not struck by now.
  void tell_if_unstruck() const;

  void add(DisturbedGroup& group);
  void remove(DisturbedGroup& group);
  /// Something is to be started, or to be ended, earlier than was known.
  void wake();

  [[nodiscard]] const Inner& inner() const noexcept { return inner_; }
  [[nodiscard]] const Faults& faults() const noexcept { return faults_; }
  [[nodiscard]] const sdk::TransportHost& host() const noexcept { return host_; }
  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }

 private:
  void work();

  Inner inner_;
  Faults faults_;
  std::uint32_t rank_;
  sdk::Host log_;
  sdk::TransportHost host_;
  std::atomic<std::uint64_t> started_ = 0;
  std::atomic<bool> corrupted_ = false;
  std::atomic<bool> told_ = false;
  std::mutex mutex_;  ///< taken before a group's
  std::condition_variable changed_;
  std::list<DisturbedGroup*> groups_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;  ///< starts what is late, and ends what is past its deadline; after what it uses
};

/// A group of the inner transport on such a rank. Its ops are held back here for a while, or for good, before the inner
/// transport hears of their start.
class DisturbedGroup {
 public:
  DisturbedGroup(Disturbance& shared, const sr_group& group, std::uint64_t handle);
  DisturbedGroup(const DisturbedGroup&) = delete;
  DisturbedGroup& operator=(const DisturbedGroup&) = delete;
  ~DisturbedGroup();

  /// Any thread.
  [[nodiscard]] std::int32_t error(sr_error* error) const;
  [[nodiscard]] std::int32_t abort(const char* reason, sr_error* error);
  /// The first failure counts. The inner group is aborted with it.
  void fail(const sdk::TransportError& failure) noexcept;
  [[nodiscard]] std::optional<sdk::TransportError> failure() const;

  /// GROUP.
  [[nodiscard]] std::int32_t prepare(const sr_op* ops, std::uint32_t count, std::uint32_t stride, std::int64_t deadline,
                                     std::uint64_t* handle, sr_error* error);
  [[nodiscard]] std::int32_t destroy(sr_error* error);

  [[nodiscard]] Disturbance& shared() const noexcept { return shared_; }
  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }
  /// The member that this rank has lost, where it is one.
  [[nodiscard]] std::optional<std::uint32_t> lost_member() const noexcept { return lost_member_; }

 private:
  friend class DisturbedOp;
  friend class Disturbance;

  /// Until the group fails, at most until then.
  void sleep(std::int64_t until) const;
  /// Under the lock: starts what is due, ends what is past its deadline. When that is to be done again.
  std::int64_t attend(std::int64_t now);

  Disturbance& shared_;
  std::uint64_t handle_;
  std::uint32_t rank_;
  std::vector<std::uint32_t> members_;
  std::optional<std::uint32_t> lost_member_;
  std::mutex mutex_;  ///< serialises what is GROUP for the inner transport; its caller may hold it through a wait
  std::atomic<std::int64_t> next_ = INT64_MAX;  ///< when `attend` has something to do
  std::list<DisturbedOp*> held_;
  mutable std::mutex failure_mutex_;  ///< taken last
  mutable std::condition_variable failed_;
  std::optional<sdk::TransportError> failure_;
};

}  // namespace shardrun::chaos
