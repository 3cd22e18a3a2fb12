#include "core/partition/emitter.h"

#include <algorithm>
#include <utility>

namespace shardrun::partition {
BufferId Emitter::add(Buffer buffer) {
  program_.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

BufferId Emitter::add_staging(const std::string& name, graph::DType dtype, std::int64_t elements,
                              std::size_t element_bytes, Span span) {
  return add({.name = name,
              .type = {dtype, {elements}, {""}},
              .box = {{0}, {elements}},
              .global = {elements},
              .category = Category::communication,
              .bytes = static_cast<std::uint64_t>(elements) * element_bytes,
              .first = span.begin,
              .last = span.end});
}

std::int32_t Emitter::add_transfer(Transfer transfer, Span span) {
  const TransferScratch& asked = settings_.rank.transfer_scratch;
  const std::int64_t members = transfer.link.from >= 0 ? 2 : settings_.partition.placements.mesh.size(transfer.axis);
  const std::uint64_t bytes = asked ? asked(transfer, members) : 0;
  if (bytes > 0) {
    transfer.scratch =
        add_staging(transfer.name + "/scratch", graph::DType::i32, static_cast<std::int64_t>((bytes + 3) / 4), 4, span);
  }
  program_.transfers.push_back(std::move(transfer));
  return static_cast<std::int32_t>(program_.transfers.size()) - 1;
}

void Emitter::append(Instruction instruction, std::int32_t step) {
  program_.instructions.push_back(std::move(instruction));
  step_of_.push_back(step);
}

void Emitter::extend(BufferId buffer, std::int32_t until) {
  std::int32_t& last = program_.buffers[index(buffer)].last;
  last = std::max(last, until);
}

Program Emitter::finish() {
  std::vector<std::int32_t> begin(index(end_) + 1, static_cast<std::int32_t>(step_of_.size()));
  std::vector<std::int32_t> last(index(end_) + 1, static_cast<std::int32_t>(step_of_.size()));
  for (std::size_t i = step_of_.size(); i-- > 0;) {
    begin[index(step_of_[i])] = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < step_of_.size(); ++i) {
    last[index(step_of_[i])] = static_cast<std::int32_t>(i);
  }
  for (std::size_t b = settings_.states.size(); b < program_.buffers.size(); ++b) {
    program_.buffers[b].first = begin[index(program_.buffers[b].first)];
    program_.buffers[b].last = last[index(program_.buffers[b].last)];
  }
  return std::move(program_);
}

}  // namespace shardrun::partition
