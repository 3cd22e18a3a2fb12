#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// Four ranks as a grid of two rows and two columns.
struct Grid {
  explicit Grid(Member& member)
      : row(member.connect("row", 100, {member.rank() / 2 * 2, member.rank() / 2 * 2 + 1})),
        column(member.connect("column", 101, {member.rank() % 2, member.rank() % 2 + 2})) {}

  MemberGroup row;
  MemberGroup column;
};

void rows_and_columns(Member& member) {
  Grid grid(member);
  std::uint64_t id = 0;
  for (const std::uint32_t opcode : {SR_OP_ALL_REDUCE, SR_OP_ALL_GATHER, SR_OP_REDUCE_SCATTERV, SR_OP_ALL_TO_ALLV}) {
    for (MemberGroup* group : {&grid.row, &grid.column}) {
      Trial(member, *group, {.opcode = opcode, .members = 2, .count = 100}, {}, ++id).run(0);
    }
  }
  member.forget();
}

/// Ops of two groups are in flight at once. Ranks start them and wait for them in different orders.
void crossing_groups(Member& member) {
  Grid grid(member);
  Trial row(member, grid.row, sum_of(10'000, 2), {}, 1);
  Trial column(member, grid.column, sum_of(10'000, 2), {.in_place = true}, 1);
  std::vector<Trial*> order = {&row, &column};
  if (member.rank() % 3 == 1) {
    std::swap(order[0], order[1]);
  }
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (Trial* trial : order) {
      trial->fill(round);
      trial->start();
    }
    if ((round + member.rank()) % 2 == 0) {
      std::swap(order[0], order[1]);
    }
    for (Trial* trial : order) {
      trial->wait();
      trial->verify();
    }
  }
  member.forget();
}

/// Two groups are used at once, each by its own thread.
void threads(Member& member) {
  Grid grid(member);
  Trial row(member, grid.row, sum_of(999, 2), {}, 1);
  Trial column(member, grid.column, sum_of(999, 2), {}, 1);
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      for (std::uint32_t round = 0; round < 50; ++round) {
        column.run(round);
      }
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    for (std::uint32_t round = 0; round < 50; ++round) {
      row.run(round);
    }
  } catch (...) {
    grid.row.group.abort("another op failed");
    grid.column.group.abort("another op failed");
    other.join();
    throw;
  }
  other.join();
  if (failure) {
    std::rethrow_exception(failure);
  }
  member.forget();
}

/// Eight different ops are in flight at once. The first is polled. Then all are waited for, from last to first.
void many_at_once(Member& member) {
  constexpr std::uint32_t opcodes[] = {SR_OP_ALL_REDUCE, SR_OP_ALL_GATHER, SR_OP_BROADCAST, SR_OP_REDUCE_SCATTER,
                                       SR_OP_ALL_TO_ALL, SR_OP_BARRIER,    SR_OP_REDUCE,    SR_OP_ALL_GATHERV};
  MemberGroup& group = member.first(4);
  std::vector<std::unique_ptr<Trial>> trials;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const Shape shape = {.opcode = opcodes[i], .members = 4, .count = 3000 * (8 - i), .root = 3};
    trials.push_back(std::make_unique<Trial>(member, group, shape, BufferLayout{.in_place = i % 2 == 0}, i + 1));
  }
  for (std::uint32_t round = 0; round < 5; ++round) {
    for (const auto& trial : trials) {
      trial->fill(round);
      trial->start();
    }
    (void)trials.front()->test();
    for (auto trial = trials.rbegin(); trial != trials.rend(); ++trial) {
      (*trial)->wait();
      (*trial)->verify();
      if (!(*trial)->test()) {
        throw Failure("an op that was waited for is said to be under way");
      }
    }
  }
  trials.clear();
  member.forget();
}

/// An op completes if it is only polled, without a wait.
void polled(Member& member) {
  Trial trial(member, member.first(4), sum_of(70'000, 4), {}, 1);
  const std::int64_t latest = after(timeout_s);
  for (std::uint32_t round = 0; round < 3; ++round) {
    trial.fill(round);
    trial.start();
    while (!trial.test()) {
      if (plugins::transport_clock() > latest) {
        throw Failure("op_test alone never says that an op is complete");
      }
      std::this_thread::yield();
    }
    trial.verify();
  }
  member.forget();
}

/// The ids of freed groups can be reused, for the same members or for others.
void ids_again(Member& member) {
  const std::uint32_t rank = member.rank();
  for (std::uint32_t turn = 0; turn < 6; ++turn) {
    const std::uint32_t distance = 1 + turn % 3;
    const std::uint32_t other = rank ^ distance;
    MemberGroup group = member.connect("pair", 7, {std::min(rank, other), std::max(rank, other)});
    for (int again = 0; again < 2; ++again) {
      Trial(member, group, sum_of(10 + turn, 2), {}, 5).run(turn);
    }
    member.forget();
  }
}

/// A group whose members are not in the order of their ranks.
void reordered(Member& member) {
  MemberGroup group = member.connect("reordered", 8, {2, 0, 3, 1});
  for (const std::uint32_t opcode : {SR_OP_ALL_GATHERV, SR_OP_SCATTER, SR_OP_REDUCE_SCATTER, SR_OP_BROADCAST}) {
    Trial(member, group, {.opcode = opcode, .members = 4, .count = 60, .root = 1}, {}, opcode).run(0);
  }
  member.forget();
}

/// Counts the resources that the process holds: descriptors, and mappings of files and shared memory.
std::pair<std::size_t, std::size_t> held() {
  std::size_t descriptors = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
#if defined(SHARDRUN_TSAN)
    // Pipes are not counted: ThreadSanitizer starts a symbolizer with pipes when it first looks for suppressions.
    std::error_code is_gone;
    if (std::filesystem::read_symlink(each.path(), is_gone).native().starts_with("pipe:")) {
      continue;
    }
#endif
    ++descriptors;
  }
  std::size_t mappings = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string range, flags, offset, device, inode, rest;
       maps >> range >> flags >> offset >> device >> inode && std::getline(maps, rest);) {
    mappings += inode == "0" ? 0 : 1;
  }
  return {descriptors, mappings};
}

/// Creating and freeing ops and groups leaks no resources.
void nothing_left(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup& group = member.first(2);
  const auto make_and_free = [&](int times) {
    for (int i = 0; i < times; ++i) {
      Trial(member, group, sum_of(5000, 2), {.registered = i % 4 == 0}, 1).run(0);
      Trial(member, group, {.opcode = SR_OP_ALL_GATHER, .members = 2, .count = 10}, {.registered = false}, 2).run(0);
      member.forget();
      if (i % 20 == 0) {
        MemberGroup passing = member.connect("passing", 209, {0, 1});
        Trial(member, passing, sum_of(10, 2), {.registered = false}, 3).run(0);
      }
    }
  };
  make_and_free(20);
  const auto before = held();
  make_and_free(200);
  const auto after = held();
  if (after != before) {
    throw Failure(
        fmt::format("after 400 ops that were freed, this process has {} descriptors and {} mappings of files "
                    "where it had {} and {}",
                    after.first, after.second, before.first, before.second));
  }
}

void world_of_one(Member& member) {
  MemberGroup& group = member.first(1);
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (traits.collective) {
      Trial(member, group, {.opcode = traits.opcode, .members = 1, .count = 11}, {}, traits.opcode).run(0);
    }
  }
}

void second_memory(Member& member) {
  std::vector<float> memory(1000, static_cast<float>(member.rank() + 1));
  const sdk::Buffer buffer = {
      .data = memory.data(),
      .bytes = memory.size() * sizeof(float),
      .registration = member.transport().register_memory(memory.data(), memory.size() * sizeof(float), -1)};
  sdk::OpSpec request;
  request.opcode = SR_OP_ALL_REDUCE;
  request.dtype = SR_DTYPE_F32;
  request.reduction = SR_REDUCE_MAX;
  request.id = 1;
  request.count = memory.size();
  request.send = buffer;
  request.recv = buffer;
  plugins::TransportOp op = member.first(4).group.prepare({request}, after(timeout_s));
  op.start(after(timeout_s));
  if (!op.wait(after(timeout_s)) || memory != std::vector<float>(1000, 4.0F)) {
    throw Failure("an op on memory that was registered without a descriptor, and with other memory, went wrong");
  }
}

}  // namespace

void add_group_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "groups along rows and columns", .run = rows_and_columns});
  cases.push_back({.name = "ops of two groups in different orders", .run = crossing_groups});
  cases.push_back({.name = "groups in threads of their own", .run = threads});
  cases.push_back({.name = "many ops under way", .run = many_at_once});
  cases.push_back({.name = "an op that is only polled", .run = polled});
  cases.push_back({.name = "ids used again", .run = ids_again});
  cases.push_back({.name = "members in another order than the ranks", .run = reordered});
  cases.push_back({.name = "memory registered without a descriptor", .run = second_memory});
  cases.push_back({.name = "ops and groups that leave nothing behind", .run = nothing_left});
  cases.push_back({.name = "a world of one rank", .run = world_of_one, .ranks = 1});
}

}  // namespace shardrun::conformance
