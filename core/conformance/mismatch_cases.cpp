#include <fmt/format.h>

#include <functional>
#include <utility>
#include <vector>

#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// A change to one member's op that makes it differ from the ops of the others.
struct Difference {
  std::string name;
  std::uint32_t opcode = SR_OP_ALL_REDUCE;
  std::function<void(sdk::OpSpec&)> make;
  std::uint64_t count = 20'000;
};

std::vector<Difference> differences() {
  using sdk::OpSpec;
  return {
      {"counts", SR_OP_ALL_REDUCE, [](OpSpec& op) { ++op.count; }},
      {"dtypes", SR_OP_ALL_REDUCE, [](OpSpec& op) { op.dtype = SR_DTYPE_I32; }},
      {"reductions", SR_OP_ALL_REDUCE, [](OpSpec& op) { op.reduction = SR_REDUCE_MAX; }},
      {"opcodes", SR_OP_ALL_REDUCE, [](OpSpec& op) { op.opcode = SR_OP_REDUCE; }},
      {"ids", SR_OP_ALL_REDUCE, [](OpSpec& op) { op.id += 1000; }},
      {"roots", SR_OP_BROADCAST, [](OpSpec& op) { op.peer = 0; }},
      {"counts of a small op", SR_OP_ALL_GATHER, [](OpSpec& op) { ++op.count; }, 10},
      {"recv_counts", SR_OP_ALL_GATHERV, [](OpSpec& op) { ++op.recv_counts[0]; }},
      {"recv_counts of one sum", SR_OP_REDUCE_SCATTERV, [](OpSpec& op) { --op.recv_counts[0], ++op.recv_counts[1]; }},
      // Only the two members that exchange elements can see the following differences.
      {"send_counts to member 0", SR_OP_ALL_TO_ALLV, [](OpSpec& op) { ++op.send_counts[0]; }},
      {"recv_counts from member 0", SR_OP_ALL_TO_ALLV, [](OpSpec& op) { op.recv_counts[0] = 0; }},
  };
}

/// The op on which all members agree. Its buffers have room for all differences.
sdk::OpSpec request_of(std::uint32_t opcode, std::uint64_t id, std::uint64_t count, std::uint32_t n,
                       std::vector<float>& send, std::vector<float>& recv) {
  sdk::OpSpec request;
  request.opcode = opcode;
  request.dtype = SR_DTYPE_F32;
  request.reduction = SR_REDUCE_SUM;
  request.peer = n - 1;
  request.id = id;
  request.count = count;
  if (sdk::find_opcode(opcode)->has_recv_counts) {
    request.count = 0;
    request.recv_counts.assign(n, count);
    request.send_counts.assign(sdk::find_opcode(opcode)->has_send_counts ? n : 0, count);
  }
  send.assign(n * (count + 1), 1);
  recv.assign(n * (count + 1), 0);
  request.send = sdk::Buffer{send.data(), send.size() * sizeof(float)};
  request.recv = sdk::Buffer{recv.data(), recv.size() * sizeof(float)};
  return request;
}

/// All members get an error before data moves, even members whose own counts match.
void differ(Member& member, MemberGroup& group, const Difference& difference, std::uint64_t id) {
  std::vector<float> send;
  std::vector<float> recv;
  sdk::OpSpec request = request_of(difference.opcode, id, difference.count, group.size, send, recv);
  if (group.rank == group.size - 1) {
    difference.make(request);
  }
  const std::string what = fmt::format("{} members of which one has other {}", group.size, difference.name);
  std::string problem = "prepared it as if all were well";
  try {
    const plugins::TransportOp op = group.group.prepare({request}, after(timeout_s));
  } catch (const Error& error) {
    problem = error.code() == ErrorCode::transport ? "" : fmt::format("said: {}", error.message());
  }
  member.tell(what, problem);
  for (std::uint32_t other = 0; other < group.size; ++other) {
    if (const std::string found = member.hear(what, other); !found.empty()) {
      throw Failure(fmt::format("{}: each is to refuse it with SR_INVALID, and member {} {}", what, other, found));
    }
  }
}

void mismatches(Member& member) {
  for (std::uint32_t n = 2; n <= 4; ++n) {
    if (member.rank() >= n) {
      continue;
    }
    MemberGroup& group = member.first(n);
    std::uint64_t id = 0;
    for (const Difference& difference : differences()) {
      differ(member, group, difference, ++id);
    }
    Trial(member, group, {.opcode = SR_OP_ALL_TO_ALLV, .members = n, .count = 1000}, {}, 100).run(0);
    member.forget();
  }
}

/// Members start two ops in different orders, which is not allowed. Even so, results must not be wrong, and ranks must
/// not wait beyond the deadline.
void start_misordered(Member& member, std::uint64_t first, std::uint64_t second, std::uint64_t id) {
  MemberGroup doomed = member.connect("misordered", id, {0, 1});
  {
    const auto sum_of = [](std::uint64_t count) {
      return Shape{.opcode = SR_OP_ALL_REDUCE, .members = 2, .count = count};
    };
    Trial a(member, doomed, sum_of(first), {}, 1);
    Trial b(member, doomed, sum_of(second), {}, 2);
    std::vector<Trial*> order = {&a, &b};
    if (member.rank() == 1) {
      std::swap(order[0], order[1]);
    }
    try {
      for (Trial* trial : order) {
        trial->fill(0);
        trial->op().start(after(0.2));
      }
      for (Trial* trial : order) {
        require(trial->wait_until(after(failure_limit_s)),
                "an op that members started in different orders goes on and on");
        trial->verify();
      }
    } catch (const Error&) {
      // Either op is allowed to fail here.
    }
    member.meet(fmt::format("end of {}", id), 2);
    doomed.group.abort("over");
  }
  member.forget();
}

void misordered(Member& member) {
  if (member.rank() < 2) {
    start_misordered(member, 10, 1000, 401);
    start_misordered(member, 1000, 1000, 402);
    start_misordered(member, 20'000, 60'000, 403);
    start_misordered(member, 10, 60'000, 404);
    start_misordered(member, 60'000, 60'000, 405);
  }
}

}  // namespace

void add_mismatch_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "members that mean different ops", .run = mismatches});
  cases.push_back({.name = "ops started in different orders", .run = misordered});
}

}  // namespace shardrun::conformance
