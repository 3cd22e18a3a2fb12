#include "core/partition/emitter.h"

#include <algorithm>
#include <utility>

namespace shardrun::partition {

BufferId Emitter::add(Buffer buffer) { return program_.buffers.push_back(std::move(buffer)); }

BufferId Emitter::add_staging(const std::string& name, graph::DType dtype, std::int64_t elements, Span span) {
  return add({.name = name,
              .type = {dtype, {elements}, {""}},
              .box = {{0}, {elements}},
              .global = {elements},
              .category = Category::communication,
              .bytes = static_cast<std::uint64_t>(elements) * graph::element_bytes(dtype),
              .first = span.begin.number(),
              .last = span.end.number()});
}

TransferId Emitter::add_transfer(Transfer transfer, Span span) {
  const TransferScratch& asked = settings_.rank.transfer_scratch;
  const std::int64_t members =
      transfer.link.from.exists() ? 2 : settings_.partition.placements.mesh.size(transfer.axis);
  transfer.is_direct = settings_.rank.is_direct(transfer.axis);
  const std::uint64_t bytes = asked ? asked(transfer, members) : 0;
  if (bytes > 0) {
    transfer.scratch =
        add_staging(transfer.name + "/scratch", graph::DType::i32, static_cast<std::int64_t>((bytes + 3) / 4), span);
    program_.buffers[transfer.scratch].is_staged = !settings_.rank.device.is_addressable() && !transfer.is_direct;
  }
  if (const TransferChecks& checks = settings_.rank.transfer_checks) {
    for (std::int64_t member = 0; member < members; ++member) {
      transfer.check_bytes.push_back(checks(transfer, member, members));
    }
  }
  return program_.transfers.push_back(std::move(transfer));
}

void Emitter::append(Instruction instruction, StepId step) {
  program_.instructions.push_back(std::move(instruction));
  step_of_.push_back(step);
}

void Emitter::extend(BufferId buffer, StepId until) {
  std::int32_t& last = program_.buffers[buffer].last;
  last = std::max(last, until.number());
}

Program Emitter::finish() {
  const auto instructions = static_cast<std::int32_t>(step_of_.size());
  IdVector<StepId, std::int32_t> begin(end_.index() + 1, instructions);
  IdVector<StepId, std::int32_t> last(end_.index() + 1, instructions);
  for (std::size_t i = step_of_.size(); i-- > 0;) {
    begin[step_of_[i]] = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < step_of_.size(); ++i) {
    last[step_of_[i]] = static_cast<std::int32_t>(i);
  }
  for (const BufferId id : IdRange(buffer_of(settings_.states.next()), program_.buffers.next())) {
    Buffer& buffer = program_.buffers[id];
    buffer.first = begin[StepId(buffer.first)];
    buffer.last = last[StepId(buffer.last)];
  }
  return std::move(program_);
}

}  // namespace shardrun::partition
