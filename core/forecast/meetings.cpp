#include "core/forecast/meetings.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

#include "core/base/error.h"

namespace shardrun::forecast {
namespace {

using Kind = partition::Instruction::Kind;

/// Identifies ranks that take part in the same transfers: all stages of the pipeline, or the two ends of a link. Along
/// another axis it is a single rank, because all ranks of a stage start the same transfers.
using Group = std::tuple<mesh::AxisId, partition::Link, std::size_t>;

/// Per rank, the numbers of the instructions that start a group's transfers.
using Starts = std::map<std::size_t, std::vector<std::size_t>>;

constexpr std::size_t all_ranks = static_cast<std::size_t>(-1);

std::vector<std::size_t> members_of(const Group& group, std::size_t ranks) {
  const auto& [axis, link, alone] = group;
  if (link.from.exists()) {
    return {link.from.index(), link.to.index()};
  }
  if (alone != all_ranks) {
    return {alone};
  }
  std::vector<std::size_t> members;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    members.push_back(rank);
  }
  return members;
}

void add_meetings(Meetings& meetings, const Group& group, Starts& starts) {
  const std::vector<std::size_t> members = members_of(group, meetings.at.size());
  const std::size_t count = starts.begin()->second.size();
  for (const std::size_t member : members) {
    if (starts[member].size() != count) {
      throw Error(ErrorCode::internal, fmt::format("stage {} starts {} transfers where stage {} starts {}", member,
                                                   starts[member].size(), starts.begin()->first, count));
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    Meeting& meeting = meetings.all.emplace_back();
    for (const std::size_t member : members) {
      const std::size_t start = starts[member][k];
      meeting.sides.push_back({member, start});
      meetings.at[member][start] = meetings.all.size() - 1;
    }
  }
}

}  // namespace

std::vector<ExecutedInstruction> instructions_of(const RankStep& step) {
  std::vector<ExecutedInstruction> all;
  for (const std::size_t number : step.executed) {
    const partition::Program& program = step.programs->programs[number];
    for (const partition::Instruction& instruction : program.instructions) {
      all.push_back({&program, &instruction});
    }
  }
  return all;
}

Meetings meetings_of(const std::vector<std::vector<ExecutedInstruction>>& ranks, mesh::AxisId pipeline_axis) {
  Meetings meetings;
  std::map<Group, Starts> groups;
  std::vector<std::map<std::size_t, std::size_t>> started_at(ranks.size());  // per wait: its transfer's start
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    meetings.at.emplace_back(ranks[rank].size());
    std::map<std::pair<const partition::Program*, partition::TransferId>, std::size_t> under_way;
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      const ExecutedInstruction& at = ranks[rank][i];
      if (at.instruction->kind == Kind::start) {
        const partition::Transfer& transfer = at.transfer();
        const std::size_t alone = transfer.axis == pipeline_axis ? all_ranks : rank;
        groups[{transfer.axis, transfer.link, alone}][rank].push_back(i);
        under_way[{at.program, at.instruction->transfer}] = i;
      } else if (at.instruction->kind == Kind::wait) {
        started_at[rank][i] = under_way.at({at.program, at.instruction->transfer});
      }
    }
  }
  for (auto& [group, starts] : groups) {
    add_meetings(meetings, group, starts);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [wait, start] : started_at[rank]) {
      meetings.at[rank][wait] = meetings.at[rank][start];
    }
  }
  return meetings;
}

}  // namespace shardrun::forecast
