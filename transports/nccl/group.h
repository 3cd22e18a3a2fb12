#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shardrun/sdk/transport/group.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transports/nccl/communicator.h"
#include "transports/nccl/device.h"
#include "transports/nccl/kernels.h"
#include "transports/nccl/steps.h"

namespace shardrun::nccl_transport {

class NcclGroup;

/// One run of an op's stages in a stream.
class Launch {
 public:
  enum class State {
    idle,
    launching,  ///< the stream has not received all stages yet
    running,    ///< until the event occurs
    complete
  };

  /// `peer`: the only member for which the launch waits; nothing if there are several. REQUIRES: a launch is made and
  /// destroyed with the group's lock held and the device current.
  Launch(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  // The following REQUIRE that the group's lock is held and the device is current. A failure throws TransportError and
  // fails the group.

  /// Begins in the group's own stream. This function and the next two REQUIRE that all of the group's previous launch
  /// has been given to its stream.
  void begin(sdk::Deadline deadline);
  /// Like begin(), after the work that the queue has now.
  void begin_after(CUstream queue, sdk::Deadline deadline);
  /// Begins in the queue. The deadline is `timeout` after the queue has reached the launch.
  void begin_in(CUstream queue, std::chrono::nanoseconds timeout);
  /// Makes work that the queue gets from now on wait for the launch.
  void join(CUstream queue);
  /// Updates the state and returns it.
  State advance();
  /// Call it before destroying the launch, which the device may still be running. Waits up to 10 s without the lock.
  void await_end(std::unique_lock<std::mutex>& lock);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] bool is_under_way() const noexcept { return state_ == State::launching || state_ == State::running; }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }

 private:
  /// Calls `act`. If it throws, fails the group, because the stream may have only a part of the op.
  template <class Act>
  void or_fail(const Act& act);
  void mark_turn(CUstream queue);
  void launch(CUstream stream, sdk::Deadline deadline);
  void issue();
  void record();
  [[nodiscard]] bool has_ended();
  [[noreturn]] void fail_late();

  NcclGroup& group_;
  std::vector<Stage> stages_;
  CUstream stream_ = nullptr;  ///< the stream in which it was begun
  std::size_t next_ = 0;       ///< the first stage that the stream has not received
  std::string what_;
  std::optional<std::uint32_t> peer_;
  std::uint64_t wire_bytes_;
  std::unique_ptr<Owned<CUevent>> event_;
  std::unique_ptr<Owned<CUevent>> turn_;  ///< occurs when the queue reaches the launch; null if there was no queue
  sdk::Deadline deadline_;
  std::optional<std::chrono::nanoseconds> timeout_;  ///< set until the queue has reached the launch
  State state_ = State::idle;
};

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

/// A group with one communicator. NCCL can hang if communicators run at the same time, or in different orders on two
/// devices. So an enqueued op runs in the queue itself, whose work the host has ordered. Ops that are started run in a
/// stream of the group.
class NcclGroup final : public sdk::Group {
 public:
  NcclGroup(const NcclTransportState& state, const Device& device, const Kernels& kernels, Memories& memories,
            Watchdog& watchdog, std::atomic<std::uint64_t>& wire_bytes, const sdk::GroupSpec& spec,
            const std::string& key);
  ~NcclGroup() override;

  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, sdk::Deadline deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;
  /// Deregisters memory from the communicator. Call it before the memory is freed.
  void deregister(void* data);

 private:
  friend class Launch;
  friend class NcclOp;
  friend class Watchdog;

  /// Fails the group, if it has not failed, and throws its failure. REQUIRES: the lock is held, the device is current.
  [[noreturn]] void fail(std::int32_t status, const std::string& text,
                         std::optional<std::uint32_t> awaited = std::nullopt);
  [[noreturn]] void fail_by(ncclResult_t result, const std::string& what, std::optional<std::uint32_t> peer);
  void throw_failure() const;
  /// Advances every launch that is in progress.
  void watch() noexcept;
  /// Waits until the stream has received all of the previous launch.
  void await_launched(std::unique_lock<std::mutex>& lock);
  /// Runs stages in the group's own stream and waits for them.
  void run(std::vector<Stage> stages, const std::string& what, sdk::Deadline deadline);
  /// The only other member that the ops involve; nothing if there are several.
  [[nodiscard]] std::optional<std::uint32_t> peer_of(std::span<const sdk::OpSpec> ops) const;
  void agree(const sdk::OpSpec& op, sdk::Deadline deadline);
  /// Checks that the op's memory is on the device, and registers it with the communicator.
  void check_buffers(const sdk::OpSpec& op, std::uint64_t scratch_bytes, sdk::Deadline deadline);
  void check_buffer(const sdk::OpSpec& op, const sdk::Buffer& buffer, sdk::Deadline deadline);
  void register_memory(const Memories::Memory& memory, sdk::Deadline deadline);

  const NcclTransportState& state_;
  const Device& device_;
  const Kernels& kernels_;
  Memories& memories_;
  Watchdog& watchdog_;
  std::atomic<std::uint64_t>& wire_bytes_;
  sdk::GroupSpec spec_;
  std::mutex mutex_;
  std::optional<sdk::TransportError> failure_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Owned<CUstream>> stream_;   ///< for ops that are not in a queue
  std::unique_ptr<Owned<CUdeviceptr>> word_;  ///< for barriers; followed by room for claims from and to every member
  std::vector<Launch*> launches_;             ///< all that exist
  Launch* last_ = nullptr;                    ///< the latest launch, if it still exists
};

}  // namespace shardrun::nccl_transport
