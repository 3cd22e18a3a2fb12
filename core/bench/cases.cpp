#include "core/bench/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/human.h"
#include "core/conformance/values.h"

namespace shardrun::bench {
namespace {

constexpr std::uint64_t page = 4096;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + page - 1) / page * page; }

/// The size of block `index` if n blocks share `total` elements in proportion to index + 1.
std::uint64_t growing(std::uint64_t total, std::uint64_t index, std::uint64_t n) {
  const std::uint64_t parts = n * (n + 1) / 2;
  const auto begin = [&](std::uint64_t i) {
    const std::uint64_t weight = i * (i + 1) / 2;
    return total / parts * weight + total % parts * weight / parts;
  };
  return begin(index + 1) - begin(index);
}

/// The size of the larger buffer of a member's op, divided by the op's `count`: the number of members, or 1.
std::uint64_t blocks_of(std::uint32_t opcode, std::uint32_t members) {
  const sdk::OpSpec op = specs_of({.opcode = opcode, .count = 1}, members, 0).front();
  return std::max(sdk::send_elements(op, 0, members), sdk::recv_elements(op, 0, members));
}

/// Sets the iterations that the settings leave open: those that move 256 MiB in all, but at least 20 and at most 1000.
void set_times(Case& each, const Settings& settings) {
  constexpr std::uint64_t bytes_in_all = std::uint64_t{256} << 20U;
  const std::uint64_t suitable =
      std::clamp<std::uint64_t>(bytes_in_all / std::max<std::uint64_t>(each.bytes, 1), 20, 1000);
  each.iterations = settings.iterations.value_or(static_cast<std::int64_t>(suitable));
  each.warm_up = settings.warm_up.value_or(std::max<std::int64_t>(2, each.iterations / 10));
}

/// The parameters that determine the numbers of the data.
conformance::Shape shape_of(const Case& each, std::uint32_t members) {
  return {.opcode = each.opcode, .members = members, .dtype = each.dtype, .reduction = each.reduction};
}

std::vector<sdk::OpSpec> sends_of(const Case& each, std::uint32_t members) {
  std::vector<sdk::OpSpec> ops;
  for (std::uint32_t member = 0; member < members; ++member) {
    ops.push_back(specs_of(each, members, member).front());
  }
  return ops;
}

void add_ceilings(std::vector<Case>& cases, const Settings& settings) {
  constexpr std::uint64_t mebi = std::uint64_t{1} << 20U;
  const std::uint64_t largest = std::max(mebi, *std::ranges::max_element(settings.sizes));
  Settings usual;
  for (const What what : {What::copy, What::reduction}) {
    for (const std::uint64_t bytes : {mebi, 8 * mebi, 64 * mebi}) {
      if (bytes <= largest) {
        set_times(cases.emplace_back(Case{.what = what, .bytes = bytes}), usual);
      }
    }
  }
  if (settings.ranks > 1) {
    set_times(cases.emplace_back(Case{.what = What::socket, .bytes = mebi}), usual);
  }
}

void add_op(std::vector<Case>& cases, const Settings& settings, Case each) {
  set_times(each, settings);
  const bool movable =
      sdk::detail::in_place_offset(specs_of(each, static_cast<std::uint32_t>(settings.ranks), 0).front(), 0)
          .has_value();
  if (!movable || settings.places != Placing::in_place) {
    cases.push_back(each);
  }
  if (movable && settings.places != Placing::out_of_place) {
    each.in_place = true;
    cases.push_back(each);
  }
}

}  // namespace

std::vector<Case> cases_of(const Settings& settings) {
  std::vector<Case> cases;
  if (settings.device.empty()) {
    add_ceilings(cases, settings);
  }
  for (const std::uint32_t opcode : settings.opcodes) {
    if (opcode == SR_OP_BARRIER) {
      add_op(cases, settings, {.opcode = opcode});
      continue;
    }
    const bool reduces = sdk::find_opcode(opcode)->reduces;
    for (const std::uint32_t dtype : settings.dtypes) {
      const std::uint64_t element = sdk::dtype_size(dtype);
      const std::uint64_t blocks = blocks_of(opcode, static_cast<std::uint32_t>(settings.ranks));
      for (const std::uint32_t reduction : reduces ? settings.reductions : std::vector<std::uint32_t>{0}) {
        for (const std::uint64_t size : settings.sizes) {
          const std::uint64_t count = std::max<std::uint64_t>(1, size / element / blocks);
          add_op(cases, settings,
                 {.opcode = opcode,
                  .dtype = dtype,
                  .reduction = reduction,
                  .bytes = count * blocks * element,
                  .count = count});
        }
      }
    }
  }
  return cases;
}

std::vector<sdk::OpSpec> specs_of(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint64_t id) {
  sdk::OpSpec op = {.opcode = each.opcode,
                    .dtype = each.dtype,
                    .reduction = each.reduction,
                    .flags = SR_OP_FLAG_BLOCKING,
                    .id = id,
                    .count = each.count,
                    .label = "bench"};
  if (each.opcode == SR_OP_SEND) {
    op.peer = (rank + 1) % members;
    sdk::OpSpec receive = op;
    receive.opcode = SR_OP_RECV;
    receive.peer = (rank + members - 1) % members;
    op.id += rank;  // both ends of a transfer use the sender's rank
    receive.id += receive.peer;
    return {op, receive};
  }
  const sdk::OpcodeTraits& traits = *sdk::find_opcode(each.opcode);
  const std::uint64_t total = each.count * members;
  for (std::uint32_t i = 0; i < members && traits.has_recv_counts; ++i) {
    op.count = 0;
    if (traits.has_send_counts) {
      op.send_counts.push_back(growing(total, (rank + i) % members, members));
      op.recv_counts.push_back(op.send_counts.back());
    } else {
      op.recv_counts.push_back(growing(total, i, members));
    }
  }
  return {op};
}

ArenaLayout layout_of(const Case& each, const plugins::Transport& transport, std::uint32_t members,
                      std::uint32_t rank) {
  ArenaLayout layout;
  if (each.what != What::op) {
    layout.send_bytes = layout.recv_bytes = each.bytes;
    layout.recv = aligned(each.bytes);
    layout.end = layout.recv + aligned(each.bytes);
    return layout;
  }
  std::vector<sdk::OpSpec> specs = specs_of(each, members, rank);
  const std::uint64_t element = sdk::dtype_size(each.dtype);
  for (const sdk::OpSpec& spec : specs) {
    layout.send_bytes += sdk::send_elements(spec, rank, members) * element;
    layout.recv_bytes += sdk::recv_elements(spec, rank, members) * element;
  }
  const std::int64_t offset = sdk::detail::in_place_offset(specs.front(), rank).value_or(0) *
                              static_cast<std::int64_t>(element);  // where `send` begins, relative to `recv`
  if (each.in_place) {
    layout.send = offset > 0 ? static_cast<std::uint64_t>(offset) : 0;
    layout.recv = offset < 0 ? static_cast<std::uint64_t>(-offset) : 0;
  } else {
    layout.recv = aligned(layout.send_bytes);
  }
  layout.scratch = aligned(std::max(layout.send + layout.send_bytes, layout.recv + layout.recv_bytes));
  layout.end = layout.scratch;
  for (sdk::OpSpec& spec : specs) {
    spec.send = sdk::Buffer{.bytes = layout.send_bytes};
    spec.recv = sdk::Buffer{.bytes = layout.recv_bytes};
    layout.scratch_bytes.push_back(transport.query(spec, members).scratch_bytes);
    layout.end += aligned(layout.scratch_bytes.back());
  }
  return layout;
}

std::uint64_t arena_bytes(const std::vector<Case>& cases, const plugins::Transport& transport, std::uint32_t members) {
  std::uint64_t most = page;
  for (const Case& each : cases) {
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      most = std::max(most, layout_of(each, transport, members, rank).end);
    }
  }
  return most;
}

void fill(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round, const ArenaLayout& layout,
          std::byte* arena) {
  constexpr int nothing = 0xA5;  // differs from all numbers that are sent, and from nearly all sums
  std::memset(arena + layout.recv, nothing, layout.recv_bytes);
  conformance::write_sent(shape_of(each, members), sends_of(each, members), rank, round, arena + layout.send);
}

std::uint64_t count_wrong(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round,
                          const ArenaLayout& layout, const std::byte* arena) {
  return conformance::wrong_received(shape_of(each, members), sends_of(each, members),
                                     specs_of(each, members, rank).back(), rank, round, arena + layout.recv)
      .count;
}

std::string describe(const Case& each) {
  switch (each.what) {
    case What::copy: return fmt::format("memcpy {}", human_bytes(each.bytes));
    case What::reduction: return fmt::format("bare reduction {}", human_bytes(each.bytes));
    case What::socket: return "TCP stream";
    case What::op: break;
  }
  return fmt::format("{} {}{}", op_name(each.opcode), human_bytes(each.bytes), each.in_place ? " in place" : "");
}

}  // namespace shardrun::bench
