#pragma once

#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transports/nccl/communicator.h"
#include "transports/nccl/device.h"
#include "transports/nccl/steps.h"

namespace shardrun::nccl {

class NcclGroup;

/// Advances the ops of groups that no thread polls, and fails them at their deadlines.
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

  std::mutex mutex_;  ///< locked before a group's
  std::condition_variable changed_;
  std::list<NcclGroup*> groups_;
  bool stopping_ = false;
  std::thread thread_;
};

/// The steps of an op, on a stream.
class Launch {
 public:
  enum class State {
    idle,
    launching,  ///< NCCL has not given all of it to the stream yet
    running,    ///< until the event occurs
    complete
  };

  Launch(NcclGroup& group, std::vector<NcclCall> steps, std::string what);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  // REQUIRE: the group's lock is held and the device is current. A failure fails the group and throws TransportError.

  /// REQUIRES: the group's previous launch is in its stream.
  void begin(CUstream stream, std::int64_t deadline);
  /// The same. The deadline is `timeout` nanoseconds after the stream has come to the launch.
  void begin_in_turn(CUstream stream, std::int64_t timeout);
  /// Updates the state and returns it.
  State advance();
  /// Call before destroying it: the device may still be running it. Unlocks while it waits.
  void await_end(std::unique_lock<std::mutex>& lock);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }
  [[nodiscard]] CUevent event() const noexcept { return event_->get(); }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }

 private:
  void launch(CUstream stream, std::int64_t deadline);
  void record();
  [[nodiscard]] bool has_ended();

  NcclGroup& group_;
  std::vector<NcclCall> steps_;
  std::string what_;
  std::uint64_t wire_bytes_;
  std::unique_ptr<Owned<CUevent>> event_;
  std::unique_ptr<Owned<CUevent>> turn_;  ///< the stream has come to the launch; made by the first `begin_in_turn`
  CUstream stream_ = nullptr;
  std::int64_t deadline_ = INT64_MAX;
  std::optional<std::int64_t> timeout_;  ///< until the stream has come to the launch
  State state_ = State::idle;
};

/// A communicator, and a stream for ops that come without one.
class NcclGroup final : public sdk::Group {
 public:
  NcclGroup(const NcclTransportState& state, const Device& device, Watchdog& watchdog,
            std::atomic<std::uint64_t>& wire_bytes, const sdk::GroupSpec& spec, const std::string& key);
  ~NcclGroup() override;

  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;

 private:
  friend class Launch;
  friend class NcclOp;
  friend class Watchdog;

  /// REQUIRES: the lock is held.
  [[noreturn]] void fail(std::int32_t status, const std::string& text);
  void throw_failure() const;
  /// Advances every launch in flight.
  void watch() noexcept;
  /// Waits until the stream has all of the previous launch.
  void await_launched(std::unique_lock<std::mutex>& lock);
  /// Runs steps of the group's own and waits for them.
  void run(std::vector<NcclCall> steps, const std::string& what, std::int64_t deadline);
  void agree(const sdk::OpSpec& op, std::int64_t deadline);
  void require_device_memory(const sdk::OpSpec& op) const;

  const NcclTransportState& state_;
  const Device& device_;
  Watchdog& watchdog_;
  std::atomic<std::uint64_t>& wire_bytes_;
  sdk::GroupSpec spec_;
  std::mutex mutex_;
  std::optional<sdk::TransportError> failure_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Owned<CUstream>> stream_;
  std::unique_ptr<Owned<CUdeviceptr>> word_;  ///< for barriers; then room for claims from and to every member
  std::list<Launch*> in_flight_;
  Launch* last_ = nullptr;  ///< the latest launch, if it still exists
};

}  // namespace shardrun::nccl
