#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// Connects a group in which rank 1 is member 0 and rank 0 is member 1, so that members' indices differ from their
/// ranks.
MemberGroup reversed(Member& member, const std::string& name, std::uint64_t id) {
  return member.connect(name, id, {1, 0});
}

void require_awaited(Member& member, const Error& error, ErrorCode code, std::optional<int> expected) {
  const auto text = [](std::optional<int> rank) { return rank ? fmt::format("rank {}", *rank) : "nobody"; };
  require(error.code() == code, "an op failed with another status than it should: " + error.message());
  require(!member.knows_awaited() || error.awaited() == expected,
          fmt::format("sr_error::awaited says {}, expected {}: {}", text(error.awaited()), text(expected),
                      error.message()));
}

Error late_error(plugins::TransportOp& op) {
  return error_of("an op past its own deadline", [&] {
    op.start(after(0.05));
    require(op.wait(after(failure_limit_s)), "an op past its own deadline is still under way");
  });
}

void late_receive(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup group = reversed(member, "late receive of a rank", 220);
  if (member.rank() == 0) {
    std::vector<float> data(100);
    sdk::OpSpec request;
    request.opcode = SR_OP_RECV;
    request.dtype = SR_DTYPE_F32;
    request.peer = 0;
    request.id = 1;
    request.count = data.size();
    request.recv = sdk::Buffer{data.data(), data.size() * sizeof(float)};
    plugins::TransportOp op = group.group.prepare({request}, after(timeout_s));
    require_awaited(member, late_error(op), ErrorCode::timeout, 1);
  }
  member.meet("the receive was late", 2);
}

void late_collective(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup group = reversed(member, "late sum of a rank", 221);
  {
    Trial sum(member, group, sum_of(1000, 2), {}, 1);
    sum.fill(0);
    if (member.rank() == 0) {
      require_awaited(member, late_error(sum.op()), ErrorCode::timeout, 1);
    }
    member.meet("the sum was late", 2);
    group.group.abort("the other rank's op was too late");
  }
  member.forget();
}

void aborted(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup group = reversed(member, "ended on purpose", 222);
  {
    Trial sum(member, group, sum_of(1000, 2), {}, 1);
    sum.fill(0);
    member.meet("both have prepared", 2);
    if (member.rank() == 0) {
      group.group.abort("past its deadline, waiting for member 0 (rank 1)");
      const Error error = error_of("an op of an aborted group", [&] {
        sum.start();
        require(sum.wait_until(after(failure_limit_s)), "an op of an aborted group is under way");
      });
      require_awaited(member, error, ErrorCode::aborted, std::nullopt);
    }
    member.meet("one has aborted", 2);
    group.group.abort("the other rank has aborted");
  }
  member.forget();
}

}  // namespace

void add_awaited_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "the rank that a late receive waited for", .run = late_receive});
  cases.push_back({.name = "the rank that a late collective op waited for", .run = late_collective});
  cases.push_back({.name = "an abort waits for no rank", .run = aborted});
}

}  // namespace shardrun::conformance
