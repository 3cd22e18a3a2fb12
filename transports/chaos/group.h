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

namespace shardrun::chaos_transport {

/// The inner transport, which moves the data. A copyable view: the host closes the inner transport after the wrapper.
struct Inner {
  void* self = nullptr;
  const sr_transport* functions = nullptr;  ///< has the functions of ABI 1.0; SR_HAS tells whether it has later ones

  /// Calls a function of the inner transport. Its status and its error text go to the caller unchanged.
  template <class Function, class... Arguments>
  [[nodiscard]] std::int32_t operator()(Function function, Arguments... arguments) const noexcept {
    return (functions->*function)(self, arguments...);
  }
};

class FaultyOp;
class FaultyGroup;

/// Injects the faults of one rank. Its groups share it.
class FaultInjector {
 public:
  FaultInjector(const Inner& inner, const Faults& faults, std::uint32_t rank, const sdk::Host& log,
                const sdk::TransportHost& host);
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;
  /// REQUIRES: all groups have been destroyed.
  ~FaultInjector();

  /// Returns the number of the op that is about to start. Does not return if the fault kills the rank at this op.
  [[nodiscard]] std::uint64_t count(const std::string& what);
  /// Whether the result of this op is to be corrupted.
  [[nodiscard]] bool corrupts(std::uint64_t number) noexcept;
  [[nodiscard]] bool has_begun(Fault fault, std::uint64_t number) const noexcept {
    return faults_.fault == fault && number >= faults_.at_op;
  }
  /// Logs a line in the first call only.
  void warn_once(const std::string& line);
  void warn(const std::string& line) const;
  /// Logs a warning if the fault was never injected.
  void warn_if_not_injected() const;

  void add(FaultyGroup& group);
  void remove(FaultyGroup& group);
  /// Call it when something becomes due earlier than before.
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
  std::atomic<bool> has_logged_ = false;
  std::mutex mutex_;  ///< locked before a group's mutex
  std::condition_variable changed_;
  std::list<FaultyGroup*> groups_;
  bool is_woken_ = false;
  bool stopping_ = false;
  /// Starts delayed ops, and ends ops past their deadline. Declared last, because it uses the other fields.
  std::thread thread_;
};

/// A group of the inner transport on a rank with faults. It can hold ops back, for a while or for good, before it
/// starts them in the inner transport.
class FaultyGroup {
 public:
  FaultyGroup(FaultInjector& injector, const sr_group& group, std::uint64_t handle);
  FaultyGroup(const FaultyGroup&) = delete;
  FaultyGroup& operator=(const FaultyGroup&) = delete;
  ~FaultyGroup();

  /// Any thread may call the next four.
  [[nodiscard]] std::int32_t error(sr_error* error) const;
  [[nodiscard]] std::int32_t abort(const char* reason, sr_error* error);
  /// Fails the group and aborts the inner group. Only the first failure is kept.
  void fail(const sdk::TransportError& failure) noexcept;
  [[nodiscard]] std::optional<sdk::TransportError> failure() const;

  /// The following are GROUP functions of the plugin ABI: never called by two threads at once for one group.
  [[nodiscard]] std::int32_t prepare(const sr_op* ops, std::uint32_t count, std::uint32_t stride, std::int64_t deadline,
                                     std::uint64_t* handle, sr_error* error);
  [[nodiscard]] std::int32_t destroy(sr_error* error);

  [[nodiscard]] FaultInjector& injector() const noexcept { return injector_; }
  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }
  /// The member that drop_peer names, if it is in this group.
  [[nodiscard]] std::optional<std::uint32_t> lost_member() const noexcept { return lost_member_; }

 private:
  friend class FaultyOp;
  friend class FaultInjector;

  /// Sleeps until `until`, or until the group fails.
  void sleep(sdk::Deadline until) const;
  /// Starts due ops and ends ops past their deadline. Returns when to call it again. REQUIRES: the lock is held.
  sdk::Deadline advance(sdk::Deadline now);

  FaultInjector& injector_;
  std::uint64_t handle_;
  std::uint32_t rank_;
  std::vector<std::uint32_t> members_;
  std::optional<std::uint32_t> lost_member_;
  std::mutex mutex_;  ///< serialises the inner transport's GROUP calls; a caller may hold it while it waits
  std::atomic<sdk::Deadline> next_ = sdk::Deadline::never();  ///< when `advance` next has something to do
  std::list<FaultyOp*> held_;
  mutable std::mutex failure_mutex_;  ///< locked after all others
  mutable std::condition_variable failed_;
  std::optional<sdk::TransportError> failure_;
};

}  // namespace shardrun::chaos_transport
