#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transports/nccl/device.h"
#include "transports/nccl/steps.h"

namespace shardrun::nccl_transport {

class NcclGroup;

/// One run of an op's stages in a stream.
class Launch {
 public:
  enum class State {
    idle,
    launching,  ///< the stream has not received all of it yet
    running,    ///< until the event occurs
    complete
  };

  /// `peer`: the only member for which it waits; nothing if there are several. It is made and destroyed with the
  /// group's lock held and the device current.
  Launch(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  // The following REQUIRE that the group's lock is held and the device is current. A failure throws TransportError and
  // fails the group.

  /// Begins in the group's own stream. This function and the next two REQUIRE that all of the group's previous launch
  /// has been given to its stream.
  void begin(sdk::Deadline deadline);
  /// The same, after the work that the queue has now.
  void begin_after(CUstream queue, sdk::Deadline deadline);
  /// Begins in the queue. The deadline is `timeout` after the queue has reached the launch.
  void begin_in(CUstream queue, std::chrono::nanoseconds timeout);
  /// Makes work that the queue gets from now on wait for the launch.
  void join(CUstream queue);
  /// Updates the state and returns it.
  State advance();
  /// Call it before destroying the launch, which the device may still be running. Unlocks while it waits.
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
  std::unique_ptr<Owned<CUevent>> turn_;  ///< the queue has reached the launch; made when there is a queue
  sdk::Deadline deadline_;
  std::optional<std::chrono::nanoseconds> timeout_;  ///< set until the queue has reached the launch
  State state_ = State::idle;
};

}  // namespace shardrun::nccl_transport
