#pragma once

/// A member's part in a collective as data: stages of sends, receives and local steps, and the memory that they use.
/// collectives.hpp makes schedules.

#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/reduce.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace shardrun::sdk {

enum class OpBuffer { send, recv, scratch };

/// A range of elements of one of an op's buffers.
struct BufferRegion {
  OpBuffer buffer = OpBuffer::send;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

struct Movement {
  std::uint32_t peer = 0;
  std::uint32_t tag = 0;  ///< the same on both sides; unique among the op's messages between two members
  BufferRegion region;
};

/// Local work of a stage, done after its transfers are complete.
struct LocalStep {
  bool reduces = false;            ///< true: reduces all of `from`, in order, into `to`; false: copies the only one
  std::vector<BufferRegion> from;  ///< each has as many elements as `to`
  BufferRegion to;                 ///< in a reduction it is one of `from`, or overlaps none of them
};

/// Transfers that can run in any order, at most one to and one from each peer, and local steps that follow in order.
struct ScheduleStage {
  std::vector<Movement> sends = {};
  std::vector<Movement> receives = {};
  std::vector<LocalStep> steps = {};
};

struct Schedule {
  std::uint32_t dtype = 0;             ///< of the regions
  std::uint64_t scratch_elements = 0;  ///< elements of the op's scratch that this member uses
  std::vector<ScheduleStage> stages;
};

/// The buffers of a prepared op. Computes the addresses of regions and runs local steps.
class OpBuffers {
 public:
  /// REQUIRES: `op` has its buffers, with enough scratch for the schedule.
  OpBuffers(const OpSpec& op, std::uint32_t dtype) : reducer_(dtype, op.reduction), size_(dtype_size(dtype)) {
    bases_[0] = op.send ? static_cast<unsigned char*>(op.send->data) : nullptr;
    bases_[1] = op.recv ? static_cast<unsigned char*>(op.recv->data) : nullptr;
    bases_[2] = op.scratch ? static_cast<unsigned char*>(op.scratch->data) : nullptr;
  }

  [[nodiscard]] unsigned char* data(const BufferRegion& region) const noexcept {
    return bases_[static_cast<std::size_t>(region.buffer)] + region.offset * size_;
  }
  [[nodiscard]] std::uint64_t bytes(const BufferRegion& region) const noexcept { return region.count * size_; }

  void run(const LocalStep& step) const noexcept { run(step, 0, step.to.count); }
  /// Runs the step for `count` of its elements, from number `first` on.
  void run(const LocalStep& step, std::uint64_t first, std::uint64_t count) const noexcept {
    const auto source_of = [&](std::size_t i) { return data(step.from[i]) + first * size_; };
    const auto target_of = [&](std::size_t) { return data(step.to) + first * size_; };
    if (step.reduces) {
      reducer_.run(step.from.size(), source_of, 1, target_of, count);
    } else if (target_of(0) != source_of(0)) {
      std::memmove(target_of(0), source_of(0), count * size_);
    }
  }

 private:
  unsigned char* bases_[3];
  Reducer reducer_;
  std::uint64_t size_;
};

/// Throws TransportError{SR_INVALID} if the op's scratch is too small for `schedule`.
inline void require_scratch(const OpSpec& op, const Schedule& schedule) {
  const std::uint64_t needed = schedule.scratch_elements * dtype_size(schedule.dtype);
  if (needed != 0 && (!op.scratch || op.scratch->data == nullptr || op.scratch->bytes < needed)) {
    detail::refuse(op, "it needs " + std::to_string(needed) + " bytes of scratch and has " +
                           std::to_string(op.scratch ? op.scratch->bytes : 0));
  }
}

}  // namespace shardrun::sdk
