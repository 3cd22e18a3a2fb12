#pragma once

#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transports/nccl/communicator.h"
#include "transports/nccl/device.h"
#include "transports/nccl/steps.h"

namespace shardrun::nccl {

class NcclGroup;

/// Looks after groups whose ops nobody looks at: hands them on, and fails them by their deadlines.
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

  std::mutex mutex_;  ///< taken before a group's
  std::condition_variable changed_;
  std::list<NcclGroup*> groups_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Steps on their way through a stream.
class Launch {
 public:
  enum class State {
    idle,
    handing,  ///< NCCL has not handed all of it to the stream yet
    running,  ///< until the event
    complete
  };

  Launch(NcclGroup& group, std::vector<Step> steps, std::string what);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  // All under the group's lock, with the device in use. What fails fails the group and throws TransportError.

  /// The one before is in the stream.
  void begin(CUstream stream, std::int64_t deadline);
  /// How far it is now.
  State advance();
  /// Before it is freed: the device may still be at it. Lets go of the lock while it waits.
  void let_end(std::unique_lock<std::mutex>& lock);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }
  [[nodiscard]] CUevent event() const noexcept { return event_->get(); }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }

 private:
  void record();
  [[nodiscard]] bool has_ended();

  NcclGroup& group_;
  std::vector<Step> steps_;
  std::string what_;
  std::uint64_t wire_bytes_;
  std::unique_ptr<Owned<CUevent>> event_;
  CUstream stream_ = nullptr;
  std::int64_t deadline_ = INT64_MAX;
  State state_ = State::idle;
};

/// A communicator and a stream for its ops that come without one.
class NcclGroup final : public sdk::Group {
 public:
  NcclGroup(const Shared& shared, const Device& device, Watchdog& watchdog, std::atomic<std::uint64_t>& wire_bytes,
            const sdk::GroupSpec& spec, const std::string& key);
  ~NcclGroup() override;

  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;

 private:
  friend class Launch;
  friend class NcclOp;
  friend class Watchdog;

  /// Under the lock.
  [[noreturn]] void fail(std::int32_t status, const std::string& text);
  void throw_failure() const;
  /// Moves on whatever is under way.
  void watch() noexcept;
  /// Until the launch before has been handed to its stream.
  void settle(std::unique_lock<std::mutex>& lock);
  /// Carries out steps of the group's own and waits for them.
  void run(std::vector<Step> steps, const std::string& what, std::int64_t deadline);
  void agree(const sdk::OpSpec& op, std::int64_t deadline);
  void require_device_memory(const sdk::OpSpec& op) const;

  const Shared& shared_;
  const Device& device_;
  Watchdog& watchdog_;
  std::atomic<std::uint64_t>& wire_bytes_;
  sdk::GroupSpec spec_;
  std::mutex mutex_;
  std::optional<sdk::TransportError> failure_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Owned<CUstream>> stream_;
  std::unique_ptr<Owned<CUdeviceptr>> word_;  ///< of barriers, then room for claims of and to every member
  std::list<Launch*> under_way_;
  Launch* last_ = nullptr;  ///< begun last, where it is still there
};

}  // namespace shardrun::nccl
