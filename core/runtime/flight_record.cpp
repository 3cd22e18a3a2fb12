#include "core/runtime/flight_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/files/mapped_file.h"

namespace shardrun::runtime {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view why) {
  throw Error(ErrorCode::data, fmt::format("'{}' is no flight record of a rank: {}", path.native(), why));
}

void read_text(FlightRecord& record, std::string_view text, const std::filesystem::path& path) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "G") {
      FlightGroup& group = record.groups.emplace_back();
      std::size_t members = 0;
      words >> members;
      for (int member = 0; group.members.size() < members && words >> member;) {
        group.members.push_back(member);
      }
      words >> std::ws;
      std::getline(words, group.name);
    } else {
      FlightOp& op = record.ops.emplace_back();
      words >> op.group >> op.bytes >> std::ws;
      std::getline(words, op.what);
      if (kind != "O" || words.fail() || op.group >= record.groups.size()) {
        refuse(path, fmt::format("'{}' is neither a group nor an operation", line));
      }
    }
  }
}

std::optional<FlightEntry> entry_of(const FlightRun& run, std::uint64_t number, std::size_t ops) {
  // The process may have ended between two stores. An incomplete entry is left out.
  if (run.number.load() != number || run.op >= ops) {
    return std::nullopt;
  }
  return FlightEntry{.number = number,
                     .number_in_group = run.number_in_group,
                     .op = run.op,
                     .state = run.state.load(),
                     .step = run.step,
                     .started = run.started,
                     .waited_for = run.waited_for,
                     .ended = run.ended};
}

const char* name_of(FlightState state) noexcept {
  switch (state) {
    case FlightState::started: return "started";
    case FlightState::waited_for: return "waited for";
    case FlightState::done: return "done";
    case FlightState::failed: return "failed";
  }
  return "unknown";
}

std::string name_of(const FlightRecord& record, const FlightEntry& entry) {
  const FlightOp& op = record.ops[entry.op];
  return fmt::format("{} (operation {} over {})", op.what, entry.number_in_group, record.groups[op.group].name);
}

/// The oldest operation for which a rank waits, or else the oldest that it has started and not finished. Null if none.
const FlightEntry* pending(const FlightRecord& record) {
  const auto is_pending = [](const FlightEntry& entry) { return entry.state != FlightState::done; };
  const auto is_waited_for = [&](const FlightEntry& entry) { return is_pending(entry) && entry.waited_for != 0; };
  auto found = std::find_if(record.entries.begin(), record.entries.end(), is_waited_for);
  if (found == record.entries.end()) {
    found = std::find_if(record.entries.begin(), record.entries.end(), is_pending);
  }
  return found == record.entries.end() ? nullptr : &*found;
}

/// Whether a rank has started operation `number` of a group; nothing if it does not know the group.
std::optional<bool> has_started(const FlightRecord& record, const FlightGroup& group, std::uint64_t number) {
  const auto same = std::find_if(record.groups.begin(), record.groups.end(), [&](const FlightGroup& other) {
    return other.name == group.name && other.members == group.members;
  });
  return same == record.groups.end() ? std::nullopt : std::optional(same->starts >= number);
}

/// Whether a rank is still in an earlier operation of a group than `number`, or in an operation of another group.
bool is_behind(const FlightRecord& record, const FlightGroup& group, std::uint64_t number) {
  const FlightEntry* const entry = pending(record);
  if (entry == nullptr) {
    return false;
  }
  const FlightGroup& its = record.groups[record.ops[entry->op].group];
  return its.name != group.name || its.members != group.members || entry->number_in_group < number;
}

/// The ranks for which rank `waiting` waits in operation `number` of a group.
std::vector<int> awaited_in(const FlightGroup& group, std::uint64_t number, int waiting,
                            const std::vector<FlightRecord>& records) {
  std::vector<int> not_started;
  std::vector<int> behind;
  for (const FlightRecord& other : records) {
    const bool is_member = std::find(group.members.begin(), group.members.end(), other.rank) != group.members.end();
    if (!is_member || other.rank == waiting) {
      continue;
    }
    if (!has_started(other, group, number).value_or(false)) {
      not_started.push_back(other.rank);
    } else if (is_behind(other, group, number)) {
      behind.push_back(other.rank);
    }
  }
  return not_started.empty() ? behind : not_started;
}

/// Reads the phase of a rank, which may be changing it at this moment.
FlightPhase phase_of(const FlightHeader& header) {
  for (;;) {
    const std::uint64_t change = header.phase_changes.load(std::memory_order_acquire);
    const FlightPhase phase = header.phases[change % header.phases.size()];
    std::atomic_thread_fence(std::memory_order_acquire);
    if (header.phase_changes.load(std::memory_order_relaxed) == change) {
      return phase;
    }
  }
}

boost::json::value time_of(const FlightRecord& record, std::int64_t time) {
  return time == 0 ? boost::json::value(nullptr)
                   : boost::json::value(static_cast<double>(time + record.clock_offset) * 1e-9);
}

}  // namespace

FlightRecord read_flight_record(const std::filesystem::path& path) {
  const files::MappedFile file(path);
  if (file.bytes().size() < sizeof(FlightFile)) {
    refuse(path, "it is too short");
  }
  const auto& raw = *reinterpret_cast<const FlightFile*>(file.bytes().data());
  if (raw.header.magic != flight_magic || raw.header.version != flight_version) {
    refuse(path, "it does not begin like one");
  }
  const FlightPhase phase = phase_of(raw.header);
  FlightRecord record{.rank = raw.header.rank,
                      .pid = raw.header.pid,
                      .clock_offset = raw.header.clock_offset,
                      .step = phase.step,
                      .phase = std::string(phase.name.data(), ::strnlen(phase.name.data(), phase.name.size()))};
  const std::uint64_t text = raw.header.text_bytes.load();
  if (text > file.bytes().size() - sizeof(FlightFile)) {
    refuse(path, "its end is missing");
  }
  read_text(record, file.text().substr(sizeof(FlightFile), text), path);
  for (std::size_t g = 0; g < std::min(record.groups.size(), flight_groups); ++g) {
    record.groups[g].starts = raw.starts[g];
  }
  const std::uint64_t runs = raw.header.runs.load();
  for (std::uint64_t n = runs > flight_runs ? runs - flight_runs + 1 : 1; n <= runs; ++n) {
    if (const auto entry = entry_of(raw.runs[(n - 1) % flight_runs], n, record.ops.size())) {
      record.entries.push_back(*entry);
    }
  }
  return record;
}

std::string to_jsonl(const FlightRecord& record) {
  std::string text = boost::json::serialize(boost::json::value{{"rank", record.rank},
                                                               {"pid", record.pid},
                                                               {"phase", record.phase},
                                                               {"step", record.step},
                                                               {"operations", record.entries.size()}}) +
                     "\n";
  for (const FlightEntry& entry : record.entries) {
    const FlightOp& op = record.ops[entry.op];
    text += boost::json::serialize(boost::json::value{{"operation", entry.number},
                                                      {"group", record.groups[op.group].name},
                                                      {"number_in_group", entry.number_in_group},
                                                      {"what", op.what},
                                                      {"bytes", op.bytes},
                                                      {"step", entry.step},
                                                      {"state", name_of(entry.state)},
                                                      {"started", time_of(record, entry.started)},
                                                      {"waited_for", time_of(record, entry.waited_for)},
                                                      {"ended", time_of(record, entry.ended)}}) +
            "\n";
  }
  return text;
}

std::string names_of(const std::vector<int>& ranks) {
  if (ranks.size() == 1) {
    return fmt::format("rank {}", ranks.front());
  }
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

std::string place_of(const FlightRecord& record) {
  std::string text = record.step > 0 ? fmt::format("step {} ({})", record.step, record.phase) : record.phase;
  if (const FlightEntry* const entry = pending(record)) {
    return text + fmt::format(", in {}", name_of(record, *entry));
  }
  if (!record.entries.empty()) {
    text += fmt::format(", after {}", name_of(record, record.entries.back()));
  }
  return text;
}

std::vector<std::string> waits_among(const std::vector<FlightRecord>& records, int but) {
  using Wait = std::tuple<std::string, std::vector<int>>;  ///< the operation, and the ranks it waits for
  std::vector<std::pair<Wait, std::vector<int>>> waits;    ///< each wait, and the ranks that wait
  for (const FlightRecord& record : records) {
    const FlightEntry* const entry = pending(record);
    if (entry == nullptr || record.rank == but) {
      continue;
    }
    std::vector<int> awaited =
        awaited_in(record.groups[record.ops[entry->op].group], entry->number_in_group, record.rank, records);
    Wait wait = {name_of(record, *entry), std::move(awaited)};
    const auto known = std::find_if(waits.begin(), waits.end(), [&](const auto& each) { return each.first == wait; });
    if (known != waits.end()) {
      known->second.push_back(record.rank);
    } else {
      waits.push_back({std::move(wait), {record.rank}});
    }
  }
  std::vector<std::string> lines;
  for (const auto& [wait, ranks] : waits) {
    const auto& [where, awaited] = wait;
    const bool one = ranks.size() == 1;
    lines.push_back(awaited.empty() ? fmt::format("{} {} in {}, which all its members have called", names_of(ranks),
                                                  one ? "waits" : "wait", where)
                                    : fmt::format("{} {} for {} in {}", names_of(ranks), one ? "waits" : "wait",
                                                  names_of(awaited), where));
  }
  return lines;
}

}  // namespace shardrun::runtime
