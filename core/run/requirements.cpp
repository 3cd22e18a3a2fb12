#include "core/run/requirements.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/compile.h"
#include "core/compile/plugins.h"
#include "core/data/dataset.h"
#include "core/device/choice.h"
#include "core/device/cores.h"
#include "core/files/folder.h"
#include "core/forecast/fit.h"
#include "core/forecast/forecast.h"
#include "core/forecast/idle.h"
#include "core/launch/world.h"
#include "core/memory/machine.h"
#include "core/metrics/run_files.h"
#include "core/train/steps.h"
#include "core/report/run_pictures.h"
#include "core/workload/program.h"

namespace shardrun::run {
namespace {

/// The limits on the job's memory.
struct Limits {
  std::optional<memory::MemoryRoom> memory = memory::available_memory();       ///< for all ranks here
  std::optional<memory::MemoryRoom> addresses = memory::address_space();       ///< per rank
  std::optional<memory::MemoryRoom> slowing = memory::memory_at_full_speed();  ///< for all ranks here
};

std::string text_of(const memory::MemoryRoom& room) {
  return to_string(room, human_bytes(room.bytes), human_bytes(room.limit));
}

/// Bytes of the host's memory that a rank needs. If a device has units, arenas are in their memory.
std::uint64_t on_host(const forecast::RankForecast& rank, const device::Device& device) {
  return device.has_units() ? rank.memory.staging + rank.snapshot : rank.needs();
}

std::uint64_t fullest_of(const forecast::Forecast& forecast, const device::Device& device) {
  std::uint64_t most = 0;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    most = std::max(most, on_host(alike, device));
  }
  return most;
}

std::uint64_t all_of(const forecast::Forecast& forecast, const device::Device& device) {
  std::uint64_t total = 0;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    total += on_host(alike, device) * alike.members.size();
  }
  return total;
}

/// Bytes of the tokens of the job's text, if they have not been made yet.
std::uint64_t bytes_of_text(const compile::Compiled& compiled) {
  return compiled.dataset == nullptr ? 0 : compiled.dataset->bytes_to_load();
}

/// The memory that the job's ranks on this machine need.
struct Need {
  std::uint64_t text = 0;       ///< the tokens of the job's text
  std::uint64_t processes = 0;  ///< memory of the ranks' processes besides arenas
  std::uint64_t bytes = 0;      ///< total
};

/// `processes`: how many of the ranks have yet to be started.
Need need_of(const job::Job& job, const compile::Compiled& compiled, const forecast::Forecast& forecast,
             std::int64_t ranks_here, std::int64_t processes) {
  constexpr std::uint64_t page_tables = 256;  // page tables take 1/512 of the memory that they map; assumes 1/256
  const auto ranks = static_cast<std::uint64_t>(std::max<std::int64_t>(ranks_here, 1));
  const std::uint64_t planned =
      ranks_here == job.ranks ? all_of(forecast, *compiled.device) : fullest_of(forecast, *compiled.device) * ranks;
  const std::uint64_t drawing = job.iterate.pictures.empty() ? 0 : report::drawing_bytes;
  const std::uint64_t own = drawing + (processes > 0 ? static_cast<std::uint64_t>(processes) * memory::process_bytes()
                                                     : ranks * memory::process_growth);
  const std::uint64_t text = bytes_of_text(compiled);
  return {.text = text, .processes = own, .bytes = text + own + planned + planned / page_tables};
}

/// Whether a command has made the job, so that there is no job file.
bool is_made(const job::Job& job) {
  std::error_code none;
  return !std::filesystem::exists(job.files.front(), none);
}

/// The settings that a person can make smaller if a job needs too much memory.
const char* sizes_of(const job::Job& job) {
  return job::generates(job) && job.where("infer", "slots") == "--slots" ? "the model, --slots or --context"
         : job::generates(job) && is_made(job)                           ? "the model, --set infer.slots or --context"
         : job::generates(job)                                           ? "the model, [infer] slots or context"
         : job.task == job::Task::infer                                  ? "the model or [infer] batch"
         : job.task == job::Task::iterate                                ? "the model"
                                                                         : "the model, [data] batch or context";
}

/// Throws if there is too little memory. The arena is allocated page by page; without this check the kernel would kill
/// a job that is too large in the middle of a step. With several hosts it is unknown which ranks are here, so each rank
/// only requires enough for itself.
void require_memory(const job::Job& job, const compile::Compiled& compiled, const forecast::Forecast& forecast,
                    std::int64_t ranks_here, const Need& need, const Limits& limits) {
  if (limits.memory && need.bytes > limits.memory->bytes) {
    const std::string of_text =
        need.text == 0 ? "" : fmt::format(" and {} for the tokens of its text", human_bytes(need.text));
    throw Error(
        ErrorCode::job,
        fmt::format("{}: {} needs {} ({} bytes){}, {} of them for its processes themselves{}, and {}: make {} smaller, "
                    "use fewer ranks{}, or {}{}",
                    job.file, ranks_here == 0 ? "one rank of the job" : "the job", human_bytes(need.bytes), need.bytes,
                    ranks_here == job.ranks || ranks_here == 0
                        ? ""
                        : fmt::format(" for the {} on this machine", counted(ranks_here, "rank")),
                    human_bytes(need.processes), of_text, text_of(*limits.memory), sizes_of(job),
                    job.task == job::Task::train ? " or more microbatches" : "",
                    limits.memory->name.empty() ? "free memory" : "raise that limit",
                    is_made(job) ? "" : "; 'shardrun plan' shows what takes the rest"));
  }
  // Transports map memory of their own. Transports within a machine also map the memory of all ranks there.
  const bool maps_others = std::ranges::any_of(compiled.transports.transports, [](const plugins::Transport& each) {
    return each.props().has(SR_TRANSPORT_SAME_HOST);
  });
  const std::uint64_t arena = fullest_of(forecast, *compiled.device);
  const std::uint64_t others =
      maps_others ? arena * static_cast<std::uint64_t>(std::max<std::int64_t>(ranks_here, 1) - 1) : 0;
  const std::uint64_t reserved = limits.addresses && job.ranks > 1 ? limits.addresses->limit / 4 + others : 0;
  if (limits.addresses && arena + reserved > limits.addresses->bytes) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: a rank needs {} ({} bytes){} and {}: raise that limit (ulimit -v unlimited), or make {} "
                    "smaller",
                    job.file, human_bytes(arena), arena,
                    reserved == 0 ? "" : fmt::format(" and {} for what transports map", human_bytes(reserved)),
                    text_of(*limits.addresses), sizes_of(job)));
  }
}

std::vector<std::string> notices_of(const job::Job& job, const compile::Compiled& compiled,
                                    const forecast::Forecast& forecast, std::int64_t ranks_here, const Need& need,
                                    const Limits& limits) {
  std::vector<std::string> notices;
  if (std::string narrow = limits.memory ? narrow_notice(need.bytes, need.processes, *limits.memory) : "";
      !narrow.empty()) {
    notices.push_back(std::move(narrow));
  }
  if (std::string repeated = compiled.dataset == nullptr ? "" : data::batch_notice(*compiled.dataset, job.data.batch);
      !repeated.empty()) {
    notices.push_back(std::move(repeated));
  }
  std::ranges::move(data::name_notices(job.data), std::back_inserter(notices));
  if (compiled.engine != nullptr) {
    return notices;  // because an engine itself computes, and holds most of the memory
  }
  if (std::string untrained = workload::untrained_notice(compiled.graph); !untrained.empty()) {
    notices.push_back(std::move(untrained));
  }
  std::ranges::copy(compiled.plan.notices, std::back_inserter(notices));
  const std::optional<forecast::IdleRanks> idle = forecast::idle_ranks(job, compiled, forecast);
  if (idle) {
    notices.push_back(to_string(*idle));
  }
  for (const forecast::RanksWithout& without : forecast::ranks_without(compiled, forecast, idle)) {
    notices.push_back(to_string(without));
  }
  if (std::string unsplit = forecast::unsplit_notice(compiled, forecast); !unsplit.empty()) {
    notices.push_back(std::move(unsplit));
  }
  if (job.cluster.memory > 0) {  // otherwise the memory of this machine's units has been checked
    const forecast::MemoryFit fit = forecast::memory_fit(job, *compiled.device, forecast).value();
    const std::uint64_t available = limits.memory && !compiled.device->has_units() ? limits.memory->bytes : 0;
    std::ranges::move(forecast::memory_notices(fit, available - std::min(available, need.text), ranks_here),
                      std::back_inserter(notices));
  }
  if (limits.slowing && ranks_here == job.ranks && need.bytes > limits.slowing->bytes) {
    notices.push_back(fmt::format("the job needs {} and {} before it slows processes down: it may run very slowly",
                                  human_bytes(need.bytes), text_of(*limits.slowing)));
  }
  return notices;
}

/// The files that the job reads, except for the job file itself, each with the setting that names it.
std::vector<std::pair<std::string, std::filesystem::path>> inputs_of(const job::Job& job) {
  std::vector<std::pair<std::string, std::filesystem::path>> inputs;
  for (const std::filesystem::path& included : std::span(job.files).subspan(1)) {
    inputs.emplace_back("include", included);
  }
  const auto add_options = [&](const std::string& section, const OptionValues& options) {
    for (const OptionValues::Entry& entry : options.entries()) {
      if (const auto* const file = std::get_if<OptionFile>(&entry.value)) {
        inputs.emplace_back(fmt::format("[{}] {}", section, entry.name), file->path);
      }
    }
  };
  add_options("model", job.model.options);
  add_options("engine", job.engine.options);
  add_options("strategy", job.strategy.options);
  for (const job::Chosen& transport : job.transports) {
    add_options("transport." + transport.name, transport.options);
  }
  if (job.task != job::Task::infer) {
    for (const std::filesystem::path& file : data::data_files(job)) {
      inputs.emplace_back("[data]", file);
    }
  }
  // A file of a run's own states is left out, because the run keeps the state from which it starts.
  std::error_code none;
  for (const std::filesystem::path& state : checkpoint::saved_state_files(job)) {
    if (!metrics::has_name_of_state(state) && !metrics::has_name_of_state(std::filesystem::canonical(state, none))) {
      inputs.emplace_back("[iterate] from", state);
    }
  }
  inputs.emplace_back("[job] checkpoint", job.checkpoint);
  if (job.task == job::Task::infer) {
    inputs.emplace_back("[infer] from", job.infer.from);
  }
  const std::filesystem::path& measured = job.cluster.measured;
  inputs.emplace_back("[cluster] measured",
                      std::filesystem::is_directory(measured, none) ? metrics::trace_path(measured) : measured);
  return inputs;
}

/// Throws unless the file [infer] to is neither a file that the job reads nor one of the run's own and, unless
/// `replaces`, new, and this process can write it.
void require_target(const job::Job& job, bool replaces) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::job, fmt::format("{}: [infer] to = {}", job.where("infer", "to"), what));
  };
  std::error_code none;
  const std::filesystem::path& to = job.infer.to;
  std::vector<std::pair<std::string, std::filesystem::path>> inputs = inputs_of(job);
  inputs.emplace_back("the command line", job.files.front());
  for (const auto& [setting, read] : inputs) {
    if (!read.empty() && !job::is_standard(read) && std::filesystem::equivalent(read, to, none)) {
      refuse(
          fmt::format("{} is a file that the job reads, as {} says: choose another", files::human_path(to), setting));
    }
  }
  if (metrics::is_written_by_runs(to, job.output)) {
    refuse(fmt::format("{} has the name of a file that the run itself writes there: choose another",
                       files::human_path(to)));
  }
  const std::filesystem::path folder = to.parent_path();
  const bool is_file = !std::filesystem::exists(to, none) || std::filesystem::is_regular_file(to, none);
  const bool makes_file = is_file && folder != job.output;  // in a folder that the run does not create
  if (is_file && !replaces && std::filesystem::exists(std::filesystem::symlink_status(to, none))) {
    refuse(fmt::format("'{}' exists: choose another name, or replace it with --replace", files::human_path(to)));
  }
  // A run writes this file until its end (files::AtomicFile). A killed run leaves it there.
  const std::filesystem::path unfinished = folder / fmt::format(".{}.tmp", to.filename().native());
  if (!replaces && (job::generates(job) || data::reads_records(job)) &&
      std::filesystem::is_regular_file(unfinished, none) && !std::filesystem::is_empty(unfinished, none)) {
    refuse(
        fmt::format("{}: '{}' has what a run wrote until it was killed, or is writing now: move it, or replace it "
                    "with --replace",
                    files::human_path(to), files::human_path(unfinished)));
  }
  if (std::filesystem::is_directory(to, none)) {
    refuse(fmt::format("{} is a folder: name a file", files::human_path(to)));
  }
  if (makes_file && !std::filesystem::is_directory(folder, none)) {
    refuse(fmt::format("{}: there is no folder {}: make it, or choose another", files::human_path(to),
                       files::human_path(folder)));
  }
  if (makes_file && ::access(folder.c_str(), W_OK) != 0) {
    refuse(fmt::format("{}: nothing can be written to its folder: {}", files::human_path(to), std::strerror(errno)));
  }
}

/// Throws if the run would touch the user's files: a run replaces files in its folder and removes those of older runs,
/// but never files that the user put there.
void require_own_folder(const job::Job& job) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] output = {} {}", job.where("job", "output"),
                                            files::human_path(job.output), what));
  };
  std::error_code none;
  if (metrics::is_written_by_runs(job.files.front(), job.output)) {
    refuse("is the job file's own folder, where the run would overwrite it: choose another, or run a copy of the file");
  }
  const std::filesystem::path kept = metrics::earlier_path(job.output);
  if (std::filesystem::exists(std::filesystem::symlink_status(kept, none)) && !metrics::has_earlier_run(job.output)) {
    refuse(
        fmt::format("has '{}', which no run has written: a run keeps there the one that it replaces; choose another "
                    "folder, or move it",
                    kept.filename().string()));
  }
  for (const auto& [setting, file] : inputs_of(job)) {
    if (!file.empty() && metrics::is_written_by_runs(file, job.output)) {
      refuse(
          fmt::format("has '{}', which {} names and which this run would replace or remove: choose another folder, "
                      "or move the file",
                      files::human_path(file), setting));
    }
  }
  const std::vector<std::filesystem::path> states = checkpoint::saved_state_files(job);
  const std::filesystem::path foreign =
      metrics::foreign_result(job.output, states.empty() ? std::filesystem::path() : states.front());
  if (!foreign.empty()) {
    refuse(
        fmt::format("has a {} which no run has written, and which runs there would overwrite or remove: choose "
                    "another folder, or move the file",
                    foreign.filename().string()));
  }
}

}  // namespace

void require_input(const job::Job& job) {
  const std::filesystem::path& from = job.infer.from;
  std::error_code none;
  const int failed = job.task != job::Task::infer || job::is_standard(from) ? 0
                     : std::filesystem::is_directory(from, none)            ? EISDIR
                     : ::access(from.c_str(), R_OK) != 0                    ? errno
                                                                            : 0;
  if (failed != 0) {
    throw Error(ErrorCode::job, fmt::format("{}: [infer] from = {}: it cannot be read: {}", job.where("infer", "from"),
                                            files::human_path(from), std::strerror(failed)));
  }
}

void require_outputs(const job::Job& job, bool replaces_file) {
  require_own_folder(job);
  if (job.task == job::Task::infer && !job::is_standard(job.infer.to)) {
    require_target(job, replaces_file);
  }
}

std::string narrow_notice(std::uint64_t bytes, std::uint64_t of_processes, const memory::MemoryRoom& room) {
  return bytes + bytes / 32 <= room.bytes
             ? ""
             : fmt::format(
                   "the job needs {}, {} of them for its processes themselves, and {}: that is just enough, and "
                   "the kernel may end it",
                   human_bytes(bytes), human_bytes(of_processes), text_of(room));
}

void require_device(const job::Job& job, const device::Device& device) {
  if (const graph::DType stored = device.stored(graph::DType::f32); stored != graph::DType::f32) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] device: {} stores real numbers as {}, for 'shardrun verify' to "
                                            "compare with: choose another device",
                                            job.where("job", "device"), device.name(), to_string(stored)));
  }
}

namespace {

std::size_t unit_of(const job::Job& job, const device::Device& device, std::int64_t local_rank,
                    std::int64_t local_ranks) {
  try {
    return device::unit_of(device, device::parse_device(job.device), local_rank, local_ranks);
  } catch (const Error& error) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] device = {}: {}", job.where("job", "device"), job.device, error.message()));
  }
}

/// Throws unless each rank that is started here has a unit, and the unit has the memory that the ranks on it need.
void require_units(const job::Job& job, const compile::Compiled& compiled, const forecast::Forecast& forecast,
                   std::int64_t ranks_here) {
  const device::Device& device = *compiled.device;
  if (!device.has_units()) {
    return;
  }
  static_cast<void>(unit_of(job, device, 0, ranks_here));
  const forecast::MemoryFit fit = forecast::fit_of_units(job, device, forecast, ranks_here);
  if (!fit.fits()) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] device = {}: {}: make {} smaller, use {}more units{}",
                                            job.where("job", "device"), job.device, forecast::to_string(fit),
                                            sizes_of(job), job.task == job::Task::train ? "more microbatches or " : "",
                                            is_made(job) ? "" : "; 'shardrun plan' shows what takes it"));
  }
}

}  // namespace

void use_unit(const job::Job& job, const device::Device& device, std::int64_t local_rank, std::int64_t local_ranks) {
  device.use_unit(unit_of(job, device, local_rank, local_ranks));
}

namespace {

/// Throws if a transport cannot bring records from the first rank to the others.
void require_shared_records(const job::Job& job, const compile::Compiled& compiled) {
  for (const plugins::Transport& transport : compiled.transports.transports) {
    if (data::reads_records(job) && !transport.props().moves(SR_MEMORY_HOST)) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: [infer] from is a stream, which the first rank reads for all, and transport {} does not "
                      "move memory of the host: name a file of one array, or choose another transport",
                      job.where("infer", "from"), transport.manifest().name));
    }
  }
}

/// Throws unless a microbatch can be computed twice, for which it must overwrite whatever it writes.
void require_replayable(const job::Job& job, const compile::Compiled& compiled) {
  if (!job.checks.replay) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] check = replay computes a microbatch twice, and {}; leave replay out",
                            job.where("job", "check"), why));
  };
  if (job.task != job::Task::train || compiled.engine != nullptr) {
    refuse("only the training of a model has microbatches that can be");
  }
  for (const graph::Function& function : compiled.graph.functions) {
    for (const graph::StateWrite& write : function.writes) {
      const graph::State& state = compiled.graph.states[write.state];
      if (function.role == graph::Role::repeated && state.kind != graph::StateKind::gradient &&
          state.kind != graph::StateKind::metric) {
        refuse(fmt::format("those of this model change the state {}", state.name));
      }
    }
  }
  for (const partition::Program& program : compiled.programs.programs) {
    if (program.role == graph::Role::repeated &&
        std::ranges::any_of(program.instructions, [](const auto& each) { return each.hook.has_value(); })) {
      refuse(fmt::format("strategy {} has a hook that would sum the gradients twice", job.strategy.name));
    }
  }
}

/// Throws if transfers are checked and the engine sends messages. A checked message is prepared behind earlier ones, so
/// an engine with several messages in progress could wait for itself.
void require_checked_messages(const job::Job& job, const compile::Compiled& compiled) {
  if (job.checks.transfers && compiled.engine != nullptr && compiled.engine->plugin.has_messages()) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: [job] check = transfers cannot check the messages that engine {} sends by itself: leave "
                    "transfers out",
                    job.where("job", "check"), job.engine.name));
  }
}

}  // namespace

std::vector<std::string> require_runnable(const job::Job& job, const compile::Compiled& compiled,
                                          std::int64_t ranks_here, std::int64_t processes) {
  require_device(job, *compiled.device);
  require_replayable(job, compiled);
  require_shared_records(job, compiled);
  require_checked_messages(job, compiled);
  require_input(job);
  const Limits limits;
  const forecast::Forecast forecast = forecast::forecast(job, compiled);
  require_units(job, compiled, forecast, ranks_here);
  const Need need = need_of(job, compiled, forecast, ranks_here, processes);
  require_memory(job, compiled, forecast, ranks_here, need, limits);
  if (job::applies_model(job) && compiled.weights == nullptr) {
    throw Error(ErrorCode::job,
                fmt::format("{}: a model is applied with the weights of a run: set [job] checkpoint to the "
                            "run's folder, its weights.safetensors or a checkpoint",
                            job.where("job", "task")));
  }
  if (job.task == job::Task::train && compiled.dataset == nullptr) {
    throw Error(ErrorCode::job, fmt::format("{}: training this model needs data: set [data] text, tokens or arrays",
                                            job.where("data", "")));
  }
  return notices_of(job, compiled, forecast, ranks_here, need, limits);
}

void require_memory_here(const job::Job& job, const compile::Compiled& compiled, std::int64_t ranks_here) {
  const forecast::Forecast forecast = forecast::forecast(job, compiled);
  require_units(job, compiled, forecast, ranks_here);
  require_memory(job, compiled, forecast, ranks_here, need_of(job, compiled, forecast, ranks_here, 0), {});
}

void check_data(const job::Job& job, const compile::Compiled& compiled) {
  if (compiled.resumed == nullptr) {
    checkpoint::check_saved_numbers(job, static_cast<int>(device::usable_cores()));
  }
  if (compiled.dataset != nullptr) {
    compiled.dataset->check(static_cast<int>(device::usable_cores()));
  }
  if (job::generates(job)) {
    train::check_prompts(job, compiled);
  }
}

void load_data(const compile::Compiled& compiled) {
  if (compiled.dataset != nullptr) {
    compiled.dataset->load();
    static_cast<void>(compiled.dataset->fingerprints());  // so that a renamed file is recognised as the same
  }
}

void require_launchable(const job::Job& job, const compile::Compiled& compiled) {
  launch::require_loopback();
  for (const plugins::Transport& transport : compiled.transports.transports) {
    if (transport.props().has(SR_TRANSPORT_OWN_LAUNCHER)) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: transport {} works between ranks that a launcher of its own has started: put 'mpirun -n {}' "
                      "or 'srun -n {}' before this command, or choose another transport",
                      compile::place_of_transport(job, transport.manifest().name), transport.manifest().name, job.ranks,
                      job.ranks));
    }
  }
}

}  // namespace shardrun::run
