#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "core/metrics/trace.h"
#include "core/partition/program.h"
#include "core/runtime/timeline.h"

namespace shardrun::metrics {

/// A step while it was recorded: its time, and where its instructions begin in the timeline.
struct TracedStep {
  std::int64_t step = 0;  ///< counted from 1
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t first_span = 0;
};

/// What an instruction's spans are called in a trace; and what tells them there from those of other things.
[[nodiscard]] std::string name_in_trace(const partition::Program& program, const partition::Instruction& instruction);
[[nodiscard]] std::string_view category_in_trace(const partition::Instruction& instruction) noexcept;

/// One rank's steps as a trace. The row `compute` has what it computed, moved and waited for, within the action of the
/// schedule, the function and the step that it belongs to. Below it, for each mesh axis, a row each for what was sent,
/// what was received and for collectives; as many as there were transfers under way at once. A transfer lasts as long
/// as the transport says, or from its start to where it was found complete.
[[nodiscard]] Trace trace_of(const std::vector<TracedStep>& steps, const runtime::Timeline& timeline,
                             const partition::Programs& programs, const device::Device& device);

}  // namespace shardrun::metrics
