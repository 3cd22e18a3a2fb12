#include "core/partition/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

std::string operands(const Program& program, const std::vector<BufferId>& ids) {
  std::string text;
  for (const BufferId id : ids) {
    const Buffer& buffer = program.buffers[id];
    text += fmt::format("{}{} @{:#x}+{}", text.empty() ? "" : ", ", buffer.name, buffer.offset, buffer.bytes);
  }
  return text;
}

std::string transfer_text(const Programs& programs, const Program& program, const Instruction& at) {
  const Transfer& transfer = program.transfers[at.transfer];
  const char* verb = at.kind == Instruction::Kind::start ? "start" : "wait";
  const char* where = transfer.is_direct ? " in the device's memory" : "";
  if (is_message(transfer)) {
    return fmt::format("{} #{} {} of {} over {}, {} to {}: {} elements{}", verb, at.transfer.number(),
                       to_string(transfer.collective), transfer.name, programs.mesh.axes[transfer.axis].name,
                       transfer.link.from.number(), transfer.link.to.number(),
                       std::max(transfer.send.elements, transfer.recv.elements), where);
  }
  return fmt::format("{} #{} {} of {} over {}: {} -> {} elements{}", verb, at.transfer.number(),
                     to_string(transfer.collective), transfer.name, programs.mesh.axes[transfer.axis].name,
                     transfer.send.elements, transfer.recv.elements, where);
}

std::string hook_text(const Programs& programs, const Program& program, const HookCall& hook) {
  std::string text = hook.copy ? fmt::format("copy of buffer {} to {}", hook.copy->from, hook.copy->to)
                               : fmt::format("call {}", hook.call);
  text += fmt::format(" of {}:", to_string(programs.hook_groups[hook.group]));
  for (const Region& region : hook.buffers) {
    text += fmt::format(" {}+{}", program.buffers[region.buffer].name, region.elements);
  }
  return text + "\n";
}

/// The name of the function with this role.
std::string_view name_of(const std::vector<Program>& programs, graph::Role role) {
  const auto found = std::ranges::find(programs, role, &Program::role);
  if (found == programs.end()) {
    throw Error(ErrorCode::internal, fmt::format("there is no program of role {}", graph::to_string(role)));
  }
  return found->function;
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

bool Programs::has(std::string_view function) const noexcept {
  return std::any_of(programs.begin(), programs.end(),
                     [&](const Program& program) { return program.function == function; });
}

const Program& Programs::find(std::string_view function, std::int64_t rows, bool last) const {
  const Program* found = nullptr;
  for (const Program& program : programs) {
    if (program.function == function && program.rows == rows && (found == nullptr || program.finalizes == last)) {
      found = &program;
    }
  }
  if (found != nullptr) {
    return *found;
  }
  throw Error(ErrorCode::internal, fmt::format("no program for function {} with {} rows", function, rows));
}

const Program& Programs::find(graph::Role role, std::int64_t rows, bool last) const {
  return find(name_of(programs, role), rows, last);
}

std::vector<std::size_t> Programs::find_calls(std::string_view function, const std::vector<std::int64_t>& rows) const {
  std::vector<std::size_t> found;
  for (std::size_t p = 0; p < programs.size() && rows.size() > 1; ++p) {
    if (programs[p].function == function && programs[p].call_rows == rows) {
      return {p};
    }
  }
  for (std::size_t call = 0; call < rows.size(); ++call) {
    const Program& program = find(function, rows[call], call + 1 == rows.size());
    found.push_back(static_cast<std::size_t>(&program - programs.data()));
  }
  return found;
}

std::vector<std::size_t> Programs::find_calls(graph::Role role, const std::vector<std::int64_t>& rows) const {
  return rows.empty() ? std::vector<std::size_t>() : find_calls(name_of(programs, role), rows);
}

std::uint64_t sent_bytes(const Transfer& transfer, std::int64_t member, std::int64_t members) {
  const std::size_t element_bytes = graph::element_bytes(transfer.dtype);
  const auto of = [&](const std::vector<std::int64_t>& counts, std::int64_t at) {
    return counts[static_cast<std::size_t>(at)];
  };
  const auto check_bytes = [&](std::int64_t at) {
    return transfer.check_bytes.empty() ? 0 : transfer.check_bytes[static_cast<std::size_t>(at)];
  };
  if (transfer.collective == Collective::send || transfer.collective == Collective::receive) {
    return static_cast<std::uint64_t>(transfer.send.elements) * element_bytes +
           check_bytes(transfer.collective == Collective::send ? 0 : 1);
  }
  const std::int64_t neighbour = (member + 1) % members;
  std::int64_t elements = 0;
  switch (transfer.collective) {
    case Collective::all_reduce: {
      const mesh::Interval whole{0, transfer.send.elements};
      elements = 2 * whole.size() - mesh::part_of(whole, members, member).size() -
                 mesh::part_of(whole, members, neighbour).size();
      break;
    }
    case Collective::reduce_scatter: elements = transfer.send.elements - of(transfer.recv_counts, member); break;
    case Collective::all_gather: elements = transfer.recv.elements - of(transfer.recv_counts, neighbour); break;
    case Collective::all_to_all:
    case Collective::halo: elements = transfer.send.elements - of(transfer.send_counts, member); break;
    case Collective::send:
    case Collective::receive: break;
  }
  return static_cast<std::uint64_t>(elements) * element_bytes + check_bytes(member);
}

void add_sent_bytes(SentBytes& sum, const Programs& programs, const Program& program) {
  const mesh::Coordinates at = mesh::coordinates_of(programs.mesh, programs.rank);
  for (const Transfer& transfer : program.transfers) {
    const std::uint64_t bytes = sent_bytes(transfer, at[transfer.axis], programs.mesh.size(transfer.axis));
    if (bytes > 0) {
      sum[programs.mesh.axes[transfer.axis].name][to_string(transfer.collective)] += bytes;
    }
  }
}

const char* to_string(Collective collective) noexcept {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
    case Collective::all_to_all: return "all_to_all";
    case Collective::halo: return "halo";
    case Collective::send: return "send";
    case Collective::receive: return "receive";
  }
  return "?";
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
      fmt::format("rank {} of {}: arena {} bytes, device {}, {} thread{}\n", programs.rank, programs.mesh.ranks(),
                  programs.arena_bytes, programs.device, programs.threads, programs.threads == 1 ? "" : "s");
  for (const Buffer& state : programs.states) {
    text += fmt::format("state {} {} {} @{:#x}+{}\n", state.name, to_string(state.type), to_string(state.category),
                        state.offset, state.bytes);
  }
  for (const Program& program : programs.programs) {
    text += fmt::format(
        "\nprogram {} rows {}{}: {} instructions, transients {} bytes (at least {}, at instruction {})\n",
        program.function, program.rows, program.finalizes ? ", last of a step" : "", program.instructions.size(),
        program.transient_bytes, program.least_bytes, program.peak_instruction);
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& at = program.instructions[i];
      if (at.kind == Instruction::Kind::start || at.kind == Instruction::Kind::wait) {
        text += fmt::format("{:5} {}\n", i, transfer_text(programs, program, at));
        continue;
      }
      if (at.hook) {
        text += fmt::format("{:5} {}", i, hook_text(programs, program, *at.hook));
        continue;
      }
      text += fmt::format("{:5} {} {} {}{}{} [{}]", i, operands(program, at.outputs), mark(at.accumulate),
                          at.kind == Instruction::Kind::move ? "copies for " : "", at.op->name,
                          to_string(at.attributes), operands(program, at.inputs));
      text += at.scratch_bytes == 0 ? "\n" : fmt::format(" scratch @{:#x}+{}\n", at.scratch_offset, at.scratch_bytes);
    }
  }
  return text;
}

std::string hook_text(const Programs& programs, plan::HookKind kind) {
  std::string text;
  for (const Program& program : programs.programs) {
    for (const Instruction& at : program.instructions) {
      if (at.hook && programs.hook_groups[at.hook->group].kind == kind) {
        text += hook_text(programs, program, *at.hook);
      } else if (at.kind == Instruction::Kind::start) {
        const Transfer& transfer = program.transfers[at.transfer];
        const auto name = [&](const Region& region) { return program.buffers[region.buffer].name; };
        if (transfer.hook == kind) {
          text += fmt::format("{}{} to {}\n", transfer_text(programs, program, at), name(transfer.send),
                              name(transfer.recv));
        }
      }
    }
  }
  return text;
}

}  // namespace shardrun::partition
