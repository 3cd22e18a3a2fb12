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

namespace shardrun::nccl {

class NcclGroup;

/// The stages of an op, on the stream of its group.
class Launch {
 public:
  enum class State {
    idle,
    launching,  ///< the stream does not have all of it yet
    running,    ///< until the event occurs
    complete
  };

  /// `peer`: the only member that it waits for; nothing where it waits for several.
  Launch(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  // REQUIRE: the group's lock is held and the device is current. A failure fails the group and throws TransportError.

  /// REQUIRES: the group's previous launch is in its stream.
  void begin(std::int64_t deadline);
  /// The same, once the work is done that the queue has.
  void begin_after(CUstream queue, std::int64_t deadline);
  /// The same. The deadline is `timeout` nanoseconds after the queue has come to the launch.
  void begin_in_turn(CUstream queue, std::int64_t timeout);
  /// Updates the state and returns it.
  State advance();
  /// Call before destroying it: the device may still be running it. Unlocks while it waits.
  void await_end(std::unique_lock<std::mutex>& lock);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] CUevent event() const noexcept { return event_->get(); }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }

 private:
  void wait_for_turn(CUstream queue);
  void launch(std::int64_t deadline);
  void issue();
  void record();
  [[nodiscard]] bool has_ended();
  [[noreturn]] void fail_late();

  NcclGroup& group_;
  std::vector<Stage> stages_;
  std::size_t next_ = 0;  ///< the first stage that the stream was not given
  std::string what_;
  std::optional<std::uint32_t> peer_;
  std::uint64_t wire_bytes_;
  std::unique_ptr<Owned<CUevent>> event_;
  std::unique_ptr<Owned<CUevent>> turn_;  ///< the queue has come to the launch; made when there is one
  std::int64_t deadline_ = INT64_MAX;
  std::optional<std::int64_t> timeout_;  ///< until the queue has come to the launch
  State state_ = State::idle;
};

}  // namespace shardrun::nccl
