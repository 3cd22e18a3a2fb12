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

/// The stages of an op, in a stream.
class Launch {
 public:
  enum class State {
    idle,
    launching,  ///< the stream does not have all of it yet
    running,    ///< until the event occurs
    complete
  };

  /// `peer`: the only member that it waits for; nothing where it waits for several. It is made and destroyed with the
  /// group's lock held and the device current.
  Launch(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  // REQUIRE: the group's lock is held and the device is current. A failure fails the group and throws TransportError.

  /// In the group's own stream. REQUIRES, as the others: the group's previous launch is in its stream.
  void begin(sdk::Deadline deadline);
  /// The same, once the work is done that the queue has.
  void begin_after(CUstream queue, sdk::Deadline deadline);
  /// In the queue. The deadline is `timeout` after the queue has come to the launch.
  void begin_in(CUstream queue, std::chrono::nanoseconds timeout);
  /// Work given to the queue from now on comes after the launch.
  void join(CUstream queue);
  /// Updates the state and returns it.
  State advance();
  /// Call before destroying it: the device may still be running it. Unlocks while it waits.
  void await_end(std::unique_lock<std::mutex>& lock);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] bool is_under_way() const noexcept { return state_ == State::launching || state_ == State::running; }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }

 private:
  /// Fails the group if `act` throws, because the stream may have only a part of the op.
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
  CUstream stream_ = nullptr;  ///< where it was begun
  std::size_t next_ = 0;       ///< the first stage that the stream was not given
  std::string what_;
  std::optional<std::uint32_t> peer_;
  std::uint64_t wire_bytes_;
  std::unique_ptr<Owned<CUevent>> event_;
  std::unique_ptr<Owned<CUevent>> turn_;  ///< the queue has come to the launch; made when there is one
  sdk::Deadline deadline_;
  std::optional<std::chrono::nanoseconds> timeout_;  ///< until the queue has come to the launch
  State state_ = State::idle;
};

}  // namespace shardrun::nccl_transport
