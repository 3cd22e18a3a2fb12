#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device/queue.h"

namespace shardrun::device {

/// How the host uses a tensor's elements.
enum class Access : std::uint8_t {
  read,   ///< their values
  write,  ///< to give all of them new values
};

/// How the host reaches tensors: through a queue of their device, with host memory for copies.
struct HostAccess {
  HostAccess(Queue& with_queue) : queue(with_queue) {}
  /// `with_writes` outlives the copies.
  HostAccess(Queue& with_queue, std::span<std::byte> with_room, Event& with_writes)
      : queue(with_queue), room(with_room), writes(&with_writes) {}

  /// Without the room that a copy of the tensor takes.
  [[nodiscard]] HostAccess without(const TensorView& tensor) const noexcept;

  Queue& queue;
  std::span<std::byte> room;  ///< a copy that does not fit has memory of its own
  Event* writes = nullptr;    ///< the end of the device's last copy from the room: after it the room is free
};

/// A tensor's elements where the host may use them: in the device's memory if the host can address that, else in a
/// copy.
class HostTensor {
 public:
  /// Waits for the queue's work. To write a copy in the room it waits only until the room is free. `host`: of the
  /// tensor's device; outlives this.
  HostTensor(const HostAccess& host, const TensorView& tensor, Access access);

  /// The tensor, with an address that the host may use. A copy that is to be written begins as anything.
  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(view_.data), view_.bytes()};
  }

  /// Writes the elements to the tensor, and waits for that unless the copy is in the room. REQUIRES: Access::write.
  void store();

 private:
  Queue& queue_;
  TensorView tensor_;  ///< on the device
  TensorView view_;
  Event* writes_ = nullptr;  ///< see HostAccess; null: the copy is not in the room
  std::vector<std::byte> own_;
};

/// The elements of a tensor in host memory, as numbers of their own type. Throws Error{internal} if they have another.
template <typename T>
[[nodiscard]] std::span<T> elements_of(const TensorView& view);

}  // namespace shardrun::device
