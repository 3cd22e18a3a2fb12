#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/partition/lower.h"
#include "core/partition/program.h"
#include "core/partition/usage.h"

namespace shardrun::partition {

/// A program as it grows, step by step. Until it is finished the lives of its transients are counted in steps.
class Emitter {
 public:
  /// `end`: the step behind the last.
  Emitter(const LowerSettings& settings, std::int32_t end) : settings_(settings), end_(end) {
    program_.buffers = settings.states;
  }

  [[nodiscard]] Program& program() noexcept { return program_; }

  BufferId add(Buffer buffer);

  /// Elements in the order in which they are sent or received, or a library's scratch.
  BufferId add_staging(const std::string& name, graph::DType dtype, std::int64_t elements, std::size_t element_bytes,
                       Span span);

  /// Its number; the transport's scratch, where it asks for some, is a buffer more.
  std::int32_t add_transfer(Transfer transfer, Span span);

  void append(Instruction instruction, std::int32_t step);

  /// A buffer is needed until the end of this step at least.
  void extend(BufferId buffer, std::int32_t until);

  /// Lives in instructions: a step may have become several.
  [[nodiscard]] Program finish();

 private:
  const LowerSettings& settings_;
  std::int32_t end_;
  Program program_;
  std::vector<std::int32_t> step_of_;  ///< of each instruction
};

}  // namespace shardrun::partition
