#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "core/partition/partition.h"
#include "core/runtime/interpreter.h"
#include "core/verify/snapshot.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

struct InterpretedSettings {
  std::string_view device = "cpu";  ///< the device of the ranks
  int threads = 1;                  ///< threads of each rank and of the reference
  std::int64_t steps = 2;
  std::optional<runtime::Fault> fault = std::nullopt;
  const plugins::Hooks* hooks = nullptr;  ///< hooks for runtime::Executor; null: none
};

/// Called between the calls of a step, at every moment of the workload. Steps count from 0.
using AtMoment = std::function<void(std::int64_t step, Moment moment, runtime::Interpreter& ranks)>;

/// Runs a workload's first steps, and an evaluation after the last, on all ranks in this process.
void interpret(const Workload& workload, const partition::Partition& partition, const InterpretedSettings& settings,
               const AtMoment& at_moment);

}  // namespace shardrun::verify
