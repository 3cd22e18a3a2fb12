#include <fmt/format.h>

#include <cstring>

#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

#if defined(SHARDRUN_ASAN) || defined(SHARDRUN_TSAN)
constexpr std::uint64_t large = 100'000;  // not larger: comparing elements takes long
#else
constexpr std::uint64_t large = 300'000;
#endif
constexpr std::uint64_t long_in_16_bits = 500'000;

/// Prepares an op once and runs it two or three times with different data. Repeats this with 0 to `large` elements, in
/// and out of place, and in memory that is registered or not.
void run_sizes(Member& member, MemberGroup& group, std::uint32_t opcode, std::uint64_t& id) {
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1021}, large}) {
    for (const bool in_place : {false, true}) {
      for (const bool registered : {true, false}) {
        const Shape shape = {.opcode = opcode,
                             .members = group.size,
                             .count = count,
                             .root = static_cast<std::uint32_t>(id % group.size)};
        const bool repeats =
            in_place && (!sdk::detail::in_place_offset(op_of(shape, 0), 0) || (count == large && !registered));
        if (repeats) {
          continue;
        }
        ++id;
        Trial trial(member, group, shape, {.in_place = in_place, .registered = registered}, id,
                    id % 2 == 0 ? SR_OP_FLAG_BLOCKING : 0);
        for (std::uint32_t round = 0; round < (count == large ? 2U : 3U); ++round) {
          trial.run(round);
        }
      }
      member.forget();
    }
  }
}

void run_members(Member& member, std::uint32_t opcode) {
  std::uint64_t id = 1000;
  for (std::uint32_t n = 1; n <= member.world_size(); ++n) {
    if (member.rank() < n) {
      run_sizes(member, member.first(n), opcode, id);
    }
    id = 1000 * (n + 1);
  }
}

/// Tests every collective that moves elements without reducing them, with every dtype.
void move_dtypes(Member& member) {
  std::uint64_t id = 0;
  for (const sdk::DtypeTraits& dtype : sdk::dtypes) {
    for (const std::uint32_t opcode : {SR_OP_BROADCAST, SR_OP_ALL_GATHER, SR_OP_ALL_GATHERV, SR_OP_ALL_TO_ALL,
                                       SR_OP_ALL_TO_ALLV, SR_OP_GATHER, SR_OP_SCATTER}) {
      const Shape shape = {.opcode = opcode, .members = 3, .count = 7, .dtype = dtype.dtype, .root = 1};
      if (member.rank() < 3) {
        Trial(member, member.first(3), shape, {}, ++id).run(0);
      }
    }
    member.forget();
  }
}

void reduce_dtypes(Member& member, std::uint32_t opcode) {
  std::uint64_t id = 0;
  for (const sdk::DtypeTraits& dtype : sdk::dtypes) {
    for (const sdk::ReductionTraits& reduction : sdk::reductions) {
      const Shape shape = {.opcode = opcode,
                           .members = 3,
                           .count = 37,
                           .dtype = dtype.dtype,
                           .reduction = reduction.reduction,
                           .root = 2};
      ++id;
      if (member.rank() < 3) {
        Trial(member, member.first(3), shape, {.in_place = id % 2 == 0}, id).run(0);
      }
    }
    member.forget();
  }
}

/// Sums and products of f16 and bf16 are rounded once only, for any number of members and of elements.
void round_once(Member& member, std::uint32_t opcode) {
  const bool is_scattered = opcode == SR_OP_REDUCE_SCATTER || opcode == SR_OP_REDUCE_SCATTERV;
  std::uint64_t id = 0;
  for (std::uint32_t n = 2; n <= member.world_size(); ++n) {
    for (const std::uint64_t count : {std::uint64_t{37}, std::uint64_t{5003}, long_in_16_bits}) {
      for (const std::uint32_t dtype : {SR_DTYPE_BF16, SR_DTYPE_F16}) {
        for (const std::uint32_t reduction : {SR_REDUCE_SUM, SR_REDUCE_PRODUCT}) {
          ++id;
          const Shape shape = {.opcode = opcode,
                               .members = n,
                               .count = is_scattered ? count / n : count,
                               .dtype = dtype,
                               .reduction = reduction,
                               .root = n - 1,
                               .rounds = true};
          // Large counts are tried in fewer layouts, because checking them takes long.
          for (const bool in_place : {false, true}) {
            if (member.rank() < n && (count < long_in_16_bits || (in_place == (id % 2 == 0) && n == 3))) {
              Trial(member, member.first(n), shape, {.in_place = in_place}, 2 * id + (in_place ? 1 : 0)).run(0);
            }
          }
          member.forget();
        }
      }
    }
  }
}

/// A NaN on any member makes a minimum or maximum NaN, whatever the order of the reduction.
void nan_stays(Member& member) {
  std::uint64_t id = 0;
  for (const std::uint32_t dtype : {SR_DTYPE_F32, SR_DTYPE_F64, SR_DTYPE_F16, SR_DTYPE_BF16}) {
    for (const std::uint32_t reduction : {SR_REDUCE_MIN, SR_REDUCE_MAX}) {
      for (const std::uint64_t count : {std::uint64_t{37}, std::uint64_t{5003}, std::uint64_t{100'003}}) {
        for (const std::uint32_t opcode : {SR_OP_ALL_REDUCE, SR_OP_REDUCE_SCATTER, SR_OP_REDUCE}) {
          const Shape shape = {.opcode = opcode,
                               .members = 4,
                               .count = opcode == SR_OP_REDUCE_SCATTER ? count / 4 : count,
                               .dtype = dtype,
                               .reduction = reduction,
                               .root = static_cast<std::uint32_t>(id % 4),
                               .with_nan = true};
          ++id;
          Trial(member, member.first(4), shape, {.in_place = id % 2 == 1}, id).run(0);
        }
        member.forget();
      }
    }
  }
}

/// Sums of fractions depend on the order of addition. All members must get the same bits.
void same_bits(Member& member) {
  constexpr std::size_t count = 5003;
  MemberGroup& group = member.first(4);
  sdk::Buffer buffer = member.registered(count * sizeof(float));
  auto* data = static_cast<float*>(buffer.data);
  sdk::OpSpec request;
  request.opcode = SR_OP_ALL_REDUCE;
  request.dtype = SR_DTYPE_F32;
  request.reduction = SR_REDUCE_SUM;
  request.id = 1;
  request.count = count;
  request.send = buffer;
  request.recv = buffer;
  plugins::TransportOp op = group.group.prepare({request}, after(timeout_s));
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = 1.0F / static_cast<float>(3 + i * (member.rank() + 1) % 1009);
  }
  op.start(after(timeout_s));
  if (!op.wait(after(timeout_s))) {
    throw Failure("it does not end");
  }
  member.tell("bits", std::string(static_cast<const char*>(buffer.data), buffer.bytes));
  if (member.hear("bits", 0) != member.hear("bits", member.rank())) {
    throw Failure("all_reduce of fractions gave this rank other bits than rank 0");
  }
  member.forget();
}

/// No member leaves a barrier before every member has entered.
void barrier_holds(Member& member) {
  MemberGroup& group = member.first(4);
  Trial barrier(member, group, {.opcode = SR_OP_BARRIER, .members = 4}, {}, 1);
  for (std::uint32_t last = 0; last < 4; ++last) {
    const std::string place = fmt::format("barrier {}", last);
    if (member.rank() == last) {
      // By now the other members have started, and must still be waiting.
      for (std::uint32_t other = 0; other < 4; ++other) {
        if (other != last && member.hear(place, other) != "waiting") {
          throw Failure(fmt::format("rank {} left a barrier before rank {} had come", other, last));
        }
      }
    }
    barrier.start();
    if (member.rank() != last) {
      member.tell(place, barrier.wait_until(after(0.02)) ? "gone" : "waiting");
    }
    barrier.wait();
  }
  member.forget();
}

void count_bytes(Member& member) {
  MemberGroup& group = member.first(4);
  Trial trial(member, group, {.opcode = SR_OP_ALL_GATHER, .members = 4, .count = 10'000}, {}, 1);
  const std::uint64_t before = member.transport().wire_bytes();
  trial.run(0);
  const std::uint64_t once = member.transport().wire_bytes() - before;
  trial.run(1);
  const std::uint64_t twice = member.transport().wire_bytes() - before;
  if (once < 40'000 || twice < once + 40'000) {
    throw Failure(
        fmt::format("an all_gather of 40000 bytes gave {} wire_bytes, a second one {} in all; this rank gives "
                    "others at least its own 40000 each time",
                    once, twice));
  }
  member.forget();
}

/// Checks that the reported times of an op lie between its start and the end of its wait.
void times_of_ops(Member& member) {
  MemberGroup& group = member.first(4);
  Trial trial(member, group, {.opcode = SR_OP_ALL_REDUCE, .members = 4, .count = 100'000}, {}, 1);
  for (std::uint32_t round = 0; round < 3; ++round) {
    trial.fill(round);
    const std::int64_t before = plugins::transport_clock();
    trial.start();
    trial.wait();
    const std::int64_t after = plugins::transport_clock();
    const std::optional<sdk::OpTimes> times = trial.op().times();
    if (times && (times->begun < before || times->ended < times->begun || times->ended > after)) {
      throw Failure(
          fmt::format("an op that was started at {} and waited for until {} was under way from {} to {}, as "
                      "op_times says",
                      before, after, times->begun, times->ended));
    }
  }
  member.forget();
}

}  // namespace

void add_collective_cases(std::vector<Case>& cases) {
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (traits.collective) {
      cases.push_back({.name = std::string(traits.name),
                       .run = [opcode = traits.opcode](Member& member) { run_members(member, opcode); }});
    }
    if (traits.reduces) {
      cases.push_back({.name = fmt::format("{} of every dtype", traits.name),
                       .run = [opcode = traits.opcode](Member& member) { reduce_dtypes(member, opcode); }});
    }
  }
  cases.push_back({.name = "every dtype moved", .run = move_dtypes});
  cases.push_back({.name = "NaN stays NaN", .run = nan_stays});
  cases.push_back({.name = "all_reduce gives all members the same bits", .run = same_bits});
  cases.push_back({.name = "a barrier holds", .run = barrier_holds});
  cases.push_back({.name = "wire_bytes are counted", .run = count_bytes});
  cases.push_back({.name = "when ops were under way", .run = times_of_ops});
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (traits.reduces) {
      cases.push_back({.name = fmt::format("{} of 16-bit floats, rounded once", traits.name),
                       .run = [opcode = traits.opcode](Member& member) { round_once(member, opcode); },
                       .ranks = 8});
    }
  }
}

}  // namespace shardrun::conformance
