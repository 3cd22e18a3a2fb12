#include "core/partition/program.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

std::string operands(const Program& program, const std::vector<BufferId>& ids) {
  std::string text;
  for (const BufferId id : ids) {
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(id)];
    text += fmt::format("{}{} @{:#x}+{}", text.empty() ? "" : ", ", buffer.name, buffer.offset, buffer.bytes);
  }
  return text;
}

const char* mark(Accumulate accumulate) noexcept {
  switch (accumulate) {
    case Accumulate::never: return "=";
    case Accumulate::after_first: return "(+)=";
    case Accumulate::always: return "+=";
  }
  return "?";
}

}  // namespace

const Program& Programs::find(std::string_view function, std::int64_t rows) const {
  for (const Program& program : programs) {
    if (program.function == function && program.rows == rows) {
      return program;
    }
  }
  throw Error(ErrorCode::internal, fmt::format("no program for function {} with {} rows", function, rows));
}

const char* to_string(Category category) noexcept {
  switch (category) {
    case Category::parameters: return "parameters";
    case Category::gradients: return "gradients";
    case Category::optimizer: return "optimizer";
    case Category::activations: return "activations";
    case Category::communication: return "communication";
    case Category::scratch: return "scratch";
  }
  return "?";
}

std::string to_string(const Programs& programs) {
  std::string text =
      fmt::format("arena {} bytes, device {}, {} threads\n", programs.arena_bytes, programs.device, programs.threads);
  for (const Buffer& state : programs.states) {
    text += fmt::format("state {} {} {} @{:#x}+{}\n", state.name, to_string(state.type), to_string(state.category),
                        state.offset, state.bytes);
  }
  for (const Program& program : programs.programs) {
    text += fmt::format("\nprogram {} rows {}: {} instructions, transients {} bytes (at least {}, at instruction {})\n",
                        program.function, program.rows, program.instructions.size(), program.transient_bytes,
                        program.least_bytes, program.peak_instruction);
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& at = program.instructions[i];
      text += fmt::format("{:5} {} {} {}{} [{}]", i, operands(program, at.outputs), mark(at.accumulate), at.op->name,
                          to_string(at.attributes), operands(program, at.inputs));
      text += at.scratch_bytes == 0 ? "\n" : fmt::format(" scratch @{:#x}+{}\n", at.scratch_offset, at.scratch_bytes);
    }
  }
  return text;
}

}  // namespace shardrun::partition
