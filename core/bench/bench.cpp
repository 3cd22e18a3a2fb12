#include "core/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/host_name.h"
#include "core/base/human.h"
#include "core/bench/measuring.h"
#include "core/compile/plugins.h"
#include "core/launch/launch.h"
#include "core/launch/limits.h"
#include "core/launch/protocol.h"
#include "core/memory/machine.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {
namespace {

unsigned cores() { return std::max(1U, std::thread::hardware_concurrency()); }

void require_memory(const Settings& settings, std::uint64_t arena) {
  const std::optional<memory::MemoryRoom> room = memory::available_memory();
  const std::uint64_t needed = arena * static_cast<std::uint64_t>(settings.ranks);
  if (room && needed > room->bytes) {
    throw Error(ErrorCode::usage,
                fmt::format("bench: {} ranks with buffers of {} each need {}, and {}: give --sizes that end earlier, "
                            "or fewer --ranks",
                            settings.ranks, human_bytes(arena), human_bytes(needed),
                            to_string(*room, human_bytes(room->bytes), human_bytes(room->limit))));
  }
}

void require_descriptors(const Settings& settings) {
  const std::uint64_t needed =
      static_cast<std::uint64_t>(settings.ranks) * launch::descriptors_per_rank + launch::other_descriptors;
  if (const std::uint64_t allowed = launch::raise_descriptor_limit(needed); allowed != 0) {
    throw Error(ErrorCode::usage, fmt::format("bench: {} ranks need {} open files in the process that starts them, and "
                                              "it may have {}: use fewer ranks, or raise the limit (ulimit -n)",
                                              settings.ranks, needed, allowed));
  }
}

/// Puts the ranks' samples together, case by case.
class Gathering {
 public:
  Gathering(const Settings& settings, const Callbacks& callbacks)
      : ranks_(static_cast<std::size_t>(settings.ranks)),
        callbacks_(callbacks),
        cases_(cases_of(settings)),
        waiting_(ranks_) {
    begin_next();
  }

  void take(const launch::RankMessage& message) {
    if (message.kind != sample_message) {
      return;
    }
    std::vector<Sample>& of_rank = waiting_[static_cast<std::size_t>(message.rank)];
    of_rank.push_back(sample_of(message.bytes));
    while (std::ranges::all_of(waiting_, [&](const auto& each) { return each.size() > outcome.rows.size(); })) {
      finish_row();
    }
  }

  Outcome outcome;

 private:
  void begin_next() const {
    if (outcome.rows.size() < cases_.size()) {
      callbacks_.on_begin(outcome.rows.size(), cases_.size(), describe(cases_[outcome.rows.size()]));
    }
  }

  void finish_row() {
    const std::size_t number = outcome.rows.size();
    std::vector<std::vector<double>> nanoseconds;
    std::uint64_t wrong = 0;
    for (std::vector<Sample>& of_rank : waiting_) {
      nanoseconds.push_back(std::move(of_rank[number].nanoseconds));
      wrong += of_rank[number].wrong;
    }
    outcome.wrong += wrong;
    outcome.rows.push_back(row_of(cases_[number], static_cast<int>(ranks_), nanoseconds, wrong));
    callbacks_.on_row(outcome.rows.back());
    begin_next();
  }

  std::size_t ranks_;
  const Callbacks& callbacks_;
  std::vector<Case> cases_;
  std::vector<std::vector<Sample>> waiting_;  ///< by rank, then case; those that are in a row are empty
};

}  // namespace

Setting check(const Settings& settings) {
  const plugins::Transport transport =
      compile::load_transport(compile::directories_of(settings.plugins), settings.transport, settings.options,
                              static_cast<std::uint32_t>(settings.ranks));
  if (!transport.props().moves(SR_MEMORY_HOST)) {
    throw Error(ErrorCode::usage, fmt::format("bench: transport {} does not move host memory, which is all that "
                                              "bench measures: choose another ('shardrun plugins' lists them)",
                                              settings.transport));
  }
  if (transport.props().has(SR_TRANSPORT_OWN_LAUNCHER)) {
    throw Error(ErrorCode::usage,
                fmt::format("bench: transport {} opens only in ranks that a launcher of its own (mpirun, srun) has "
                            "started, and bench starts its ranks itself: time a job over it instead, as 'mpirun -n {} "
                            "shardrun JOB.ini --set job.transport={} --profile', or choose another --transport",
                            settings.transport, settings.ranks, settings.transport));
  }
  require_memory(settings, arena_bytes(cases_of(settings), transport, static_cast<std::uint32_t>(settings.ranks)));
  require_descriptors(settings);
  return {.host = host_name(),
          .cores = cores(),
          .transport = fmt::format("{} {}", transport.manifest().name, transport.manifest().version),
          .ranks = settings.ranks};
}

Outcome run(const Settings& settings, const std::vector<std::string>& words, const Callbacks& callbacks) {
  Gathering gathering(settings, callbacks);
  const launch::LaunchResult result = launch::launch(
      {.arguments = words,
       .ranks = settings.ranks,
       .threads_per_rank = 1,
       .job = to_text(settings),
       .on_output =
           [&](const launch::OutputLine& line) { callbacks.on_line(fmt::format("[{}] {}", line.rank, line.text)); },
       .on_message = [&](const launch::RankMessage& message) { gathering.take(message); },
       .on_notice = [&](std::string_view line) { callbacks.on_line(std::string(line)); }});
  Outcome outcome = std::move(gathering.outcome);
  outcome.exit_code = result.exit_code;
  if (result.cause) {
    outcome.error = launch::describe(*result.cause);
  } else if (result.forced_signal != 0) {
    outcome.error = fmt::format("ended at once by a second signal (SIG{})", sigabbrev_np(result.forced_signal));
  }
  if (outcome.exit_code == 0 && outcome.wrong > 0) {
    outcome.exit_code = 1;
  }
  return outcome;
}

}  // namespace shardrun::bench
