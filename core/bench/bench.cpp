#include "core/bench/bench.h"

#include <fmt/format.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/median.h"
#include "core/base/process.h"
#include "core/base/standard_error.h"
#include "core/bench/measuring.h"
#include "core/bench/statistics.h"
#include "core/compile/plugins.h"
#include "core/device/device.h"
#include "core/launch/launch.h"
#include "core/launch/process.h"
#include "core/launch/protocol.h"
#include "core/launch/store_host.h"
#include "core/memory/machine.h"
#include "core/run/hosted.h"
#include "core/run/rendezvous.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {
namespace {

constexpr std::string_view row_format = "{:<16} {:>12} {:>12} {:>5} {:>8} {:>4} {:>11} {:>11} {:>8} {:>8} {:>7}\n";

const char* ceiling_name(What what) noexcept {
  switch (what) {
    case What::copy: return "memcpy";
    case What::reduction: return "reduction";
    default: return "socket";
  }
}

std::string microseconds(double value) { return fmt::format("{:.{}f}", value, value < 100 ? 2 : 1); }

plugins::Transport transport_of(const Settings& settings) {
  return compile::load_transport(compile::directories_of(settings.plugins), settings.transport, settings.options,
                                 static_cast<std::uint32_t>(settings.ranks));
}

unsigned cores() { return std::max(1U, std::thread::hardware_concurrency()); }

/// Throws Error{usage} if the machine has too little memory. `ranks`: the number of ranks on this machine.
void require_memory(std::int64_t ranks, std::uint64_t arena) {
  const std::optional<memory::MemoryRoom> room = memory::available_memory();
  const std::uint64_t needed = arena * static_cast<std::uint64_t>(ranks);
  if (room && needed > room->bytes) {
    throw Error(ErrorCode::usage,
                fmt::format("bench: {} ranks with buffers of {} each need {}, and {}: give --sizes that end earlier, "
                            "or fewer --ranks",
                            ranks, human_bytes(arena), human_bytes(needed),
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

/// Combines the ranks' samples, case by case.
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
  std::vector<std::vector<Sample>> waiting_;  ///< by rank, then case; a sample is emptied once its row is made
};

Outcome outcome_of(const launch::LaunchResult& result, Outcome measured) {
  measured.exit_code = result.exit_code;
  if (result.cause) {
    measured.error = launch::describe(*result.cause);
  } else if (result.forced_signal != 0) {
    measured.error = fmt::format("ended at once by a second signal (SIG{})", sigabbrev_np(result.forced_signal));
  }
  if (measured.exit_code == 0 && measured.wrong > 0) {
    measured.exit_code = 1;
  }
  return measured;
}

/// How long a rank that another launcher has started can be silent before it counts as lost.
constexpr std::chrono::milliseconds silence{10000};

run::Messengers messengers_of(const Settings& settings) {
  return {.place = "bench", .directories = compile::directories_of(settings.plugins), .load = [&settings] {
            std::vector<plugins::Transport> transports;
            transports.push_back(transport_of(settings));
            return transports;
          }};
}

/// Ends the process. Called while the first rank's own process hangs.
[[noreturn]] void give_up(const launch::LaunchResult& result) {
  const Outcome outcome = outcome_of(result, {});
  write_to_standard_error(fmt::format("shardrun: {}\n", outcome.error), Patience::brief);
  end_process(outcome.exit_code == 0 ? 1 : outcome.exit_code);
}

}  // namespace

Row row_of(const Case& measured, int ranks, const std::vector<std::vector<double>>& nanoseconds, std::uint64_t wrong) {
  const std::vector<double> longest = slowest(nanoseconds);
  Row row{.measured = measured, .wrong = wrong};
  const double time_ns = median(longest);
  row.time_us = time_ns / 1e3;
  row.p99_us = p99(longest) / 1e3;
  row.algbw = static_cast<double>(measured.bytes) / time_ns;
  row.busbw = measured.what == What::op ? row.algbw * bus_factor(measured.opcode, ranks) : row.algbw;
  return row;
}

std::string title(const Setting& setting) {
  return fmt::format("# {} on {}, {}: {}\n#\n# ceilings of this machine, all ranks at once{:>24}\n", setting.transport,
                     setting.host, counted(setting.cores, "core"), counted(setting.ranks, "rank"), "GB/s");
}

std::string ceiling_line(const Row& row, const Setting& setting) {
  const std::string size = human_bytes(row.measured.bytes);
  std::string what;
  switch (row.measured.what) {
    case What::copy: what = fmt::format("memcpy of {}, each rank", size); break;
    case What::reduction: what = fmt::format("a += b of {} f32, 1/{} of it each rank", size, setting.ranks); break;
    default:
      what = fmt::format("TCP{}, rank 0 to 1, pieces of {}", setting.is_one_machine ? " over the loopback" : "", size);
  }
  return fmt::format("#   {:<56} {:>7.2f}\n", what, row.algbw);
}

std::string columns() {
  return "#\n" + fmt::format(row_format, "# op", "size (B)", "count", "type", "redop", "in", "time (us)", "p99 (us)",
                             "algbw", "busbw", "#wrong");
}

std::string line(const Row& row) {
  const Case& each = row.measured;
  const bool barrier = each.opcode == SR_OP_BARRIER;
  return fmt::format(row_format, op_name(each.opcode), each.bytes, each.count, barrier ? "-" : dtype_name(each.dtype),
                     each.reduction == 0 ? "-" : reduction_name(each.reduction), each.in_place ? "in" : "out",
                     microseconds(row.time_us), microseconds(row.p99_us), fmt::format("{:.2f}", row.algbw),
                     fmt::format("{:.2f}", row.busbw), row.wrong);
}

std::string to_json(const Setting& setting, const std::vector<Row>& rows) {
  boost::json::object ceilings;
  boost::json::array ops;
  for (const Row& row : rows) {
    const Case& each = row.measured;
    if (each.what != What::op) {
      boost::json::value& of_kind = ceilings[ceiling_name(each.what)];
      if (!of_kind.is_array()) {
        of_kind = boost::json::array();
      }
      of_kind.as_array().push_back(
          {{"bytes", each.bytes}, {"time_us", row.time_us}, {"p99_us", row.p99_us}, {"bandwidth", row.algbw}});
      continue;
    }
    const bool barrier = each.opcode == SR_OP_BARRIER;
    ops.push_back(
        {{"op", op_name(each.opcode)},
         {"bytes", each.bytes},
         {"count", each.count},
         {"dtype", barrier ? boost::json::value() : boost::json::value(dtype_name(each.dtype))},
         {"redop", each.reduction == 0 ? boost::json::value() : boost::json::value(reduction_name(each.reduction))},
         {"ranks", setting.ranks},
         {"in_place", each.in_place},
         {"iterations", each.iterations},
         {"time_us", row.time_us},
         {"p99_us", row.p99_us},
         {"algbw", row.algbw},
         {"busbw", row.busbw},
         {"wrong", row.wrong}});
  }
  const boost::json::object all = {{"transport", setting.transport}, {"host", setting.host}, {"cores", setting.cores},
                                   {"ranks", setting.ranks},         {"ceilings", ceilings}, {"rows", ops}};
  return boost::json::serialize(all) + "\n";
}

std::string device_of(const Settings& settings) {
  const plugins::Transport transport = transport_of(settings);
  if (transport.props().moves(SR_MEMORY_HOST)) {
    return "";
  }
  if (transport.props().moves(SR_MEMORY_CUDA)) {
    return "cuda";
  }
  throw Error(ErrorCode::usage, fmt::format("bench: transport {} moves neither host memory nor CUDA's, which is all "
                                            "that bench measures: choose another ('shardrun plugins' lists them)",
                                            settings.transport));
}

Setting check(const Settings& settings, const launch::World* world) {
  const plugins::Transport transport = transport_of(settings);
  if (transport.props().has(SR_TRANSPORT_OWN_LAUNCHER) && world == nullptr) {
    throw Error(ErrorCode::usage,
                fmt::format("bench: transport {} works between ranks that a launcher of its own has started: put "
                            "'mpirun -n {}' or 'srun -n {}' before this command, or choose another --transport",
                            settings.transport, settings.ranks, settings.ranks));
  }
  const std::int64_t here = world == nullptr ? settings.ranks : std::max<std::int64_t>(run::ranks_here(*world), 1);
  if (!settings.device.empty()) {
    static_cast<void>(device::Device::find(settings.device).units());  // throws if there are none
  }
  require_memory(here, arena_bytes(cases_of(settings), transport, static_cast<std::uint32_t>(settings.ranks)));
  if (world == nullptr) {
    require_descriptors(settings);
  } else {
    run::raise_limits(*world);
  }
  return {.host = host_name(),
          .cores = cores(),
          .transport = fmt::format("{} {}", transport.manifest().name, transport.manifest().version),
          .ranks = settings.ranks,
          .is_one_machine = world == nullptr};
}

int run_hosted_first(const Settings& settings, const launch::World& world, const std::function<int()>& stop_signal,
                     const Callbacks& callbacks, const std::function<int(const Outcome& outcome)>& tell) {
  const run::Messengers messengers = messengers_of(settings);
  run::Rendezvous rendezvous = run::rendezvous_of(messengers, world);
  Gathering gathering(settings, callbacks);
  std::optional<launch::StoreHost> host;
  launch::Invitation invitation;
  try {
    invitation = run::invitation_of(rendezvous, world);
    launch::HostSettings hosting = run::host_settings(world, invitation, silence, to_text(settings));
    hosting.stop_signal = stop_signal;
    hosting.on_message = [&](const launch::RankMessage& message) { gathering.take(message); };
    hosting.on_notice = [&](std::string_view line) { callbacks.on_line(std::string(line)); };
    hosting.last_resort = give_up;
    host.emplace(std::move(hosting));
    host->start();
    invitation.master.port = host->port();
  } catch (const Error&) {
    static_cast<void>(run::invite(rendezvous, world, {.master = {.address = "none"}}));
    throw;
  }
  if (!run::invite(rendezvous, world, invitation)) {
    throw run::no_place(messengers, world);
  }
  host->expect_ranks();
  const int code = measure_as_rank(settings, run::hosted_context(world, invitation, silence), stop_signal);
  launch::LaunchResult result = host->wait();
  result.exit_code = result.exit_code == 0 ? code : result.exit_code;
  return tell(outcome_of(result, std::move(gathering.outcome)));
}

int run_hosted_other(const Settings& settings, const launch::World& world, const std::function<int()>& stop_signal) {
  const run::Messengers messengers = messengers_of(settings);
  run::Rendezvous rendezvous = run::rendezvous_of(messengers, world);
  const launch::Invitation invitation = run::hear_invitation(messengers, rendezvous, world);
  if (invitation.master.port == 0) {
    throw Error(ErrorCode::io, fmt::format("rank {}: rank 0 could not begin, and says why", world.rank));
  }
  return measure_as_rank(settings, run::hosted_context(world, invitation, silence), stop_signal);
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
  return outcome_of(result, std::move(gathering.outcome));
}

}  // namespace shardrun::bench
