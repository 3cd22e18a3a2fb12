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
  /// `end`: the number of steps.
  Emitter(const LowerSettings& settings, std::int32_t end) : settings_(settings), end_(end) {
    program_.buffers = settings.states;
  }

  [[nodiscard]] Program& program() noexcept { return program_; }

  BufferId add(Buffer buffer);

  /// Adds a buffer for packed blocks or for a library's scratch memory.
  BufferId add_staging(const std::string& name, graph::DType dtype, std::int64_t elements, std::size_t element_bytes,
                       Span span);

  /// Returns the transfer's index in Program::transfers. Also adds a scratch buffer if the transport asks for one.
  std::int32_t add_transfer(Transfer transfer, Span span);

  void append(Instruction instruction, std::int32_t step);

  /// Extends the lifetime of a buffer to step `until` at least.
  void extend(BufferId buffer, std::int32_t until);

  /// Returns the program with lifetimes counted in instructions, since a step may have become several.
  [[nodiscard]] Program finish();

 private:
  const LowerSettings& settings_;
  std::int32_t end_;
  Program program_;
  std::vector<std::int32_t> step_of_;  ///< the step of each instruction
};

}  // namespace shardrun::partition
