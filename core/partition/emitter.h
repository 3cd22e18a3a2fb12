#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/partition/lower.h"
#include "core/partition/program.h"
#include "core/partition/usage.h"

namespace shardrun::partition {

/// Builds a program step by step. Until finish(), the lifetimes of transient buffers are counted in steps.
class Emitter {
 public:
  /// `end`: the number of steps of the function.
  Emitter(const LowerSettings& settings, StepId end) : settings_(settings), end_(end) {
    program_.buffers = IdVector<BufferId, Buffer>(std::vector(settings.states.begin(), settings.states.end()));
  }

  [[nodiscard]] Program& program() noexcept { return program_; }

  BufferId add(Buffer buffer);

  /// Adds a buffer for packed blocks, for a transport's scratch memory or for a hook.
  BufferId add_staging(const std::string& name, graph::DType dtype, std::int64_t elements, Span span);

  /// Adds a transfer, and a scratch buffer if the transport needs one.
  TransferId add_transfer(Transfer transfer, Span span);

  void append(Instruction instruction, StepId step);

  /// Extends the lifetime of a buffer to step `until` at least.
  void extend(BufferId buffer, StepId until);

  /// Returns the program. From now on lifetimes of buffers are counted in instructions: a step can be several of them.
  [[nodiscard]] Program finish();

 private:
  const LowerSettings& settings_;
  StepId end_;
  Program program_;
  std::vector<StepId> step_of_;  ///< the step of each instruction
};

}  // namespace shardrun::partition
