#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/trace.h"
#include "core/partition/program.h"
#include "core/runtime/timeline.h"

namespace shardrun::forecast {

/// A recorded step: its times, and the index of its first instruction in the timeline.
struct TracedStep {
  std::int64_t step = 0;  ///< counted from 1
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t first_span = 0;
};

/// The name and the category of an instruction's spans in a trace.
[[nodiscard]] std::string name_in_trace(const partition::Program& program, const partition::Instruction& instruction);
[[nodiscard]] std::string_view category_in_trace(const partition::Instruction& instruction) noexcept;
/// Bytes of an instruction's operands, of its copied elements, or of its transfer.
[[nodiscard]] std::int64_t bytes_in_trace(const partition::Program& program, const partition::Instruction& instruction);

/// The recorded steps of one rank as a trace. The row `compute` has spans of computing, copying and waiting, nested in
/// the schedule's action, the function and the step. Each mesh axis has rows for sends, for receives and for
/// collectives, as many as there were concurrent transfers. A transfer's span is the one that the transport reports, or
/// else lasts from its start to the end of the wait for it.
[[nodiscard]] metrics::Trace trace_of(const std::vector<TracedStep>& steps, const runtime::Timeline& timeline,
                                      const partition::Programs& programs);

}  // namespace shardrun::forecast
