#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device/queue.h"

namespace shardrun::device {

/// What the host does with a tensor's elements.
enum class Access : std::uint8_t {
  read,   ///< it reads their values
  write,  ///< it gives all of them new values
};

/// How the host reaches tensors: a queue of their device, and host memory for copies.
struct HostAccess {
  HostAccess(Queue& with_queue) : queue(with_queue) {}
  /// `with_writes` must outlive the host tensors.
  HostAccess(Queue& with_queue, std::span<std::byte> with_room, Event& with_writes)
      : queue(with_queue), room(with_room), writes(&with_writes) {}

  /// The same access, without the room that a copy of the tensor takes.
  [[nodiscard]] HostAccess without(const TensorView& tensor) const noexcept;

  Queue& queue;
  std::span<std::byte> room;  ///< for a copy; one that does not fit allocates its own memory
  Event* writes = nullptr;    ///< once this event has passed, the device no longer reads the room
};

/// A tensor's elements at an address that the host can use: a copy if the host cannot address the device's memory.
class HostTensor {
 public:
  /// Waits for the queue's work, or only until the room is free if the host will write to a copy in the room. The queue
  /// of `host` belongs to the tensor's device and must outlive this object.
  HostTensor(const HostAccess& host, const TensorView& tensor, Access access);

  /// The tensor, at an address that the host can use. A copy for writing starts with undefined contents.
  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(view_.data), view_.bytes()};
  }

  /// Writes a copy to the device's tensor. Returns when that is done, or at once if the copy is in the room.
  /// REQUIRES: Access::write.
  void store();

 private:
  Queue& queue_;
  TensorView tensor_;  ///< the device's tensor
  TensorView view_;
  Event* writes_ = nullptr;  ///< see HostAccess; null: the copy is not in the room
  std::vector<std::byte> own_;
};

/// The elements of a tensor in host memory. Throws Error{internal} unless their type is T: float, double or int32_t.
template <typename T>
[[nodiscard]] std::span<T> elements_of(const TensorView& view);

}  // namespace shardrun::device
