#include "core/run/rank_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/philox.h"
#include "core/base/standard_error.h"
#include "core/base/stop.h"
#include "core/compile/compile.h"
#include "core/compile/plugins.h"
#include "core/job/output.h"
#include "core/metrics/log.h"
#include "core/metrics/record.h"
#include "core/metrics/run_files.h"
#include "core/run/rank_reports.h"
#include "core/run/requirements.h"
#include "core/run/resuming.h"
#include "core/train/rank_link.h"
#include "core/train/steps.h"

namespace shardrun::run {
namespace {

bool is_consequence(ErrorCode code) noexcept {
  return code == ErrorCode::aborted || code == ErrorCode::peer_lost || code == ErrorCode::timeout;
}

/// Whether the same job would fail in this way again, from any checkpoint. Errors of plugins are not permanent, because
/// they may be errors of a network.
bool is_permanent(ErrorCode code) noexcept {
  return code == ErrorCode::usage || code == ErrorCode::job || code == ErrorCode::data || code == ErrorCode::numerics ||
         code == ErrorCode::shape_mismatch || code == ErrorCode::unsaved;
}

launch::FailureKind kind_of(ErrorCode code) noexcept {
  return is_consequence(code) ? launch::FailureKind::consequence
         : is_permanent(code) ? launch::FailureKind::permanent
                              : launch::FailureKind::own;
}

int work_as_rank(compile::Compiled& compiled, const train::StepSettings& settings, bool is_hosted) {
  train::RankLink& link = settings.link;
  metrics::Summary summary = train::planned_summary(compiled);
  link.message(summary_message, metrics::to_json(summary));
  try {
    summary = train::run_steps(link.job(), compiled, settings, summary);
  } catch (const Error&) {
    link.message(summary_message, metrics::to_json(summary));
    throw;
  }
  link.message(summary_message, metrics::to_json(summary));
  link.barrier();
  // The launcher expects exit code 0 from a rank that was asked to stop and has saved. Another launcher gets 75.
  const bool has_saved = summary.status == "stopped" && link.job().checkpoints.used;
  return has_saved && !is_hosted ? 0 : summary.exit_code;
}

}  // namespace

std::chrono::milliseconds silence_of(const job::Job& job) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(job.timeout * 1000));
}

namespace {

/// The job with the number of ranks that share this machine's cores, and with the threads for each of them.
job::Job placed_here(const job::Job& job, const launch::RankContext& context) {
  job::Job placed = job;
  placed.machine_ranks = context.is_hosted ? std::max(1, context.local_world_size) : job.ranks;
  placed.threads = context.is_hosted ? compile::threads_of(job, context.local_world_size) : job.threads;
  return placed;
}

/// Throws unless the machines are as `transport = auto` assumed: as many consecutive ranks on each as on this one; the
/// last may have fewer.
void require_machines_as_chosen(const job::Job& job, const std::vector<std::uint32_t>& machines) {
  const auto shared = static_cast<std::size_t>(job.machine_ranks);
  if (!compile::chooses_transports(job) || shared <= 1) {
    return;
  }
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    const std::size_t first = rank - rank % shared;
    const auto count = static_cast<std::size_t>(std::ranges::count(machines, machines[first]));
    if (machines[rank] != machines[first] || (count != shared && first + shared <= machines.size())) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: [job] transport = auto takes ranks {} to {} for those of one machine, because this "
                      "one has {}, and rank {} is elsewhere, or its machine has {}: start as many ranks on each "
                      "machine, neighbours together, or name the transports",
                      job.where("job", "transport"), first, first + shared - 1, counted(job.machine_ranks, "rank"),
                      rank, count));
    }
  }
}

/// The output folder for all ranks. Ranks that the launcher of this program started get it with the job. Otherwise the
/// first rank chooses it for all: its name may contain the time, and the clocks of machines differ.
std::filesystem::path output_of_all(const job::Job& job, launch::Rank& rank, const std::filesystem::path& of_first) {
  constexpr const char* key = "output";
  if (!rank.context().is_hosted || !job::has_placeholder(job)) {
    return job.output;
  }
  if (rank.rank() == 0) {
    rank.set(key, of_first.string());
    return of_first;
  }
  return rank.get(key, launch::Rank::no_deadline);
}

/// Opens the folder. Rank 0 opens it before the others.
metrics::RunFolder open_folder(const job::Job& job, launch::Rank& rank, const std::filesystem::path& path) {
  constexpr const char* key = "folder";
  if (path.empty()) {
    return metrics::find_run_folder(job.output, rank.get(key, launch::Rank::no_deadline));
  }
  metrics::RunFolder folder(path, job.output);
  if (rank.context().is_hosted) {
    rank.set(key, folder.owner());
  }
  return folder;
}

/// Shares texts within a host: its first rank tokenises them, and its other ranks use the same memory. Ranks that
/// cannot access it tokenise by themselves. Other files are opened by each rank. All ranks compare their data with the
/// first rank's (check_data).
std::shared_ptr<data::Dataset> share_on_host(const job::Job& job, launch::Rank& rank,
                                             std::shared_ptr<data::Dataset> dataset) {
  const std::vector<std::uint32_t>& machines = rank.context().machines;
  if (dataset->bytes_to_load() == 0 || machines.empty()) {
    dataset->load();
    return dataset;
  }
  const std::uint32_t own = machines[static_cast<std::size_t>(rank.rank())];
  const std::string key = fmt::format("tokens on {}", own);
  if (std::ranges::find(machines, own) - machines.begin() == rank.rank()) {
    dataset->load();
    rank.set(key, fmt::format("{}", fmt::join(data::handles_of(*dataset), ",")));
    return dataset;
  }
  std::shared_ptr<data::Dataset> shared =
      data::attach_dataset(job, data_handles(rank.get(key, launch::Rank::no_deadline)));
  // If the file differs, which check_data() reports, this rank uses its own tokens.
  if (shared == nullptr || shared->fingerprints() != dataset->fingerprints()) {
    shared = std::move(dataset);
    shared->load();
  }
  return shared;
}

/// The data that the launcher holds open; null if the job has none.
std::shared_ptr<data::Dataset> given_data(const job::Job& job, const std::vector<std::string>& handles) {
  if (handles.empty()) {
    return nullptr;
  }
  // The process that opened the data has already compared the tokens with the vocabulary.
  std::shared_ptr<data::Dataset> given = data::attach_dataset(
      job, handles, compile::is_applied_to_tokens(job) ? std::optional<std::int64_t>(0) : std::nullopt);
  if (given == nullptr) {
    throw Error(ErrorCode::io, "the launcher's data files are out of this rank's reach");
  }
  return given;
}

/// A rank that another launcher started compiled the job before it met the other ranks. Only now does it know which
/// data its host shares and how many ranks share its cores. Programs depend on both, so they may be compiled again.
compile::Compiled compiled_for(const job::Job& job, launch::Rank& rank, RankInputs& inputs) {
  if (!inputs.compiled) {
    return compile::compile(job, rank.rank(), {}, given_data(job, inputs.data));
  }
  compile::Compiled compiled = *std::move(inputs.compiled);
  if (compiled.dataset != nullptr) {
    compiled.dataset = share_on_host(job, rank, std::move(compiled.dataset));
  }
  if (compiled.programs.threads != compile::threads_of(job)) {
    compiled.programs = compile::programs_of_rank(job, compiled, rank.rank());
  }
  return compiled;
}

launch::Rank::Deadline latest_join(const launch::RankContext& context) {
  constexpr std::chrono::minutes patience{5};
  return context.is_hosted ? launch::Rank::Clock::now() + patience : launch::Rank::no_deadline;
}

/// How long to wait for rank 0 to write its remaining files. Another launcher would end rank 0's process if this
/// process ended with an error before that.
constexpr std::chrono::seconds longest_wait_for_first{30};
constexpr std::chrono::seconds longest_wait_after_failure{4};

/// Writes to the rank's own log.
void log_failure(const std::filesystem::path& output, int rank, const std::string& text) noexcept {
  try {
    metrics::Log(metrics::log_path(output, rank)).write(text);
  } catch (const std::exception&) {
    // The error is dropped: the failure itself matters more.
  }
}

}  // namespace

std::vector<std::string> data_handles(const std::string& option) {
  std::vector<std::string> handles;
  std::istringstream words(option);
  for (std::string handle; std::getline(words, handle, ',');) {
    handles.push_back(handle);
  }
  return handles;
}

std::string declared_in(const compile::Compiled& compiled) {
  if (compiled.engine != nullptr) {
    return "";
  }
  std::string text;
  for (const graph::State& state : compiled.graph.states) {
    if (state.kind == graph::StateKind::parameter || state.kind == graph::StateKind::field) {
      text += fmt::format("{} {}\n", state.name, graph::to_string(state.type));
    }
  }
  return fmt::format("{:016x}", hash_name(text));
}

int exit_code_of(const std::function<int()>& attempt, const TellFailure& tell) {
  try {
    return attempt();
  } catch (const Error& error) {
    tell(kind_of(error.code()), error.message(), is_consequence(error.code()) ? error.awaited() : std::nullopt);
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    tell(launch::FailureKind::own, "out of memory", {});
  } catch (const std::exception& error) {
    tell(launch::FailureKind::own, fmt::format("unexpected error: {}", error.what()), {});
  }
  return 1;
}

namespace {

/// A rank's process from joining the launcher to its exit code. The members live longer than attempt(), so that this
/// rank's error is reported before other ranks report the lost connection.
class RankProcess {
 public:
  RankProcess(const job::Job& job, const launch::RankContext& context, const RankWork& work, RankInputs inputs)
      : job_(job), context_(context), work_(work), inputs_(std::move(inputs)) {}

  int run() {
    return exit_code_of([this] { return attempt_or_stop(); },
                        [this](launch::FailureKind kind, std::string text, std::optional<int> awaited) {
                          fail(kind, std::move(text), awaited);
                        });
  }

 private:
  int attempt_or_stop() {
    try {
      return attempt();
    } catch (const Stopped& stopped) {
      const std::string reason = rank_ != nullptr ? rank_->abort_reason() : "";
      fail(launch::FailureKind::consequence,
           reason.empty() ? fmt::format("was stopped by SIG{} before the first step", sigabbrev_np(stopped.signal()))
                          : fmt::format("the job is aborted: {}", reason),
           std::nullopt);
      return 128 + stopped.signal();
    }
  }

  int attempt() {
    join();
    const int code = work_(*compiled_, *link_, *folder_);
    link_->drop_record();
    link_.reset();
    rank_->goodbye(launch::Rank::no_deadline);
    if (context_.is_hosted && context_.rank != 0) {
      rank_->await_end(launch::Rank::Clock::now() + longest_wait_for_first);
    }
    return code;
  }

  /// Does everything before the work: joins the launcher, opens the output folder, makes the programs, and checks that
  /// ranks agree.
  void join() {
    rank_ = std::make_unique<launch::Rank>(context_, job::canonical_text(job_), latest_join(context_));
    if (inputs_.refusal != nullptr) {
      throw Error(*inputs_.refusal);
    }
    rank_->meet();
    rank_->on_abort([](const std::string&) { request_stop(SIGTERM); });  // also ends waits for other things than ranks
    if (inputs_.on_join) {
      inputs_.on_join();
    }
    placed_.emplace(placed_here(job_, rank_->context()));
    require_machines_as_chosen(*placed_, rank_->context().machines);
    placed_->output = output_of_all(job_, *rank_, inputs_.output);
    folder_.emplace(open_folder(*placed_, *rank_, inputs_.folder));
    placed_->output = folder_->root();
    compiled_.emplace(compiled_for(*placed_, *rank_, inputs_));
    if (!inputs_.declared.empty() && declared_in(*compiled_) != inputs_.declared) {
      throw Error(ErrorCode::plugin,
                  fmt::format("model {} declares other parameters or shapes here than it did before the ranks were "
                              "started: what a model declares must follow from the job alone",
                              job_.model.name));
    }
    use_unit(*placed_, *compiled_->device, rank_->context().local_rank, rank_->context().local_world_size);
    if (!context_.is_hosted) {        // otherwise the launcher has compared the checkpoint with the job
      std::vector<std::string> told;  // dropped: the launcher has shown these lines
      begin_from(open_resumed(*placed_, told), *compiled_);
    } else if (compiled_->resumed != nullptr) {
      std::vector<std::string> notices = check_resumed(*placed_, *compiled_);
      notices.insert(notices.begin(), told_of_resumed(*compiled_));
      for (const std::string& notice : notices) {
        if (context_.rank == 0) {
          rank_->message(line_message, notice);
        }
      }
    }
    if (context_.is_hosted && context_.local_world_size == 0) {
      require_memory_here(*placed_, *compiled_, rank_->context().local_world_size);
    }
    link_.emplace(*placed_, *compiled_, rank_.get(), inputs_.stop_signal);
    link_->check_data();
    link_->check_plan();
    link_->check_hooks();
  }

  /// Reports a failure to the launcher, and to the person if nobody else will.
  void fail(launch::FailureKind kind, std::string text, std::optional<int> awaited) {
    const bool is_noted = rank_ != nullptr && rank_->fail(kind, text, awaited);
    // The first rank's own process reports the job's result, which includes the reason of its own abort.
    const bool is_told_here = context_.is_hosted && context_.rank == 0 && kind == launch::FailureKind::consequence;
    const bool is_untold =
        !is_told_here && inputs_.refusal == nullptr && (rank_ == nullptr || (context_.is_hosted && !is_noted));
    if (is_untold && kind == launch::FailureKind::consequence && rank_ != nullptr) {
      // A transport may only know that the job is ending, so the reason is added.
      if (const std::string reason = rank_->abort_reason(); text.find(reason) == std::string::npos) {
        text += fmt::format(" ({})", reason);
      }
    }
    if (folder_ && context_.is_hosted) {
      log_failure(folder_->root(), context_.rank, text);
    }
    if (rank_ != nullptr && !is_untold && context_.is_hosted && context_.rank != 0) {
      rank_->await_end(launch::Rank::Clock::now() + longest_wait_after_failure);
    }
    if (is_untold) {
      write_to_standard_error(context_.is_hosted ? fmt::format("shardrun: rank {}: {}\n", context_.rank, text)
                                                 : text + "\n");
    }
  }

  const job::Job& job_;
  const launch::RankContext& context_;
  const RankWork& work_;
  RankInputs inputs_;
  std::unique_ptr<launch::Rank> rank_;
  std::optional<job::Job> placed_;
  std::optional<metrics::RunFolder> folder_;
  std::optional<compile::Compiled> compiled_;
  std::optional<train::RankLink> link_;
};

}  // namespace

int as_rank(const job::Job& job, const launch::RankContext& context, const RankWork& work, RankInputs inputs) {
  return RankProcess(job, context, work, std::move(inputs)).run();
}

int run_as_rank(const job::Job& job, const launch::RankContext& context, bool profile, RankInputs inputs) {
  const auto work = [&context, profile, ends_by = inputs.ends_by, standard_input = inputs.standard_input,
                     standard_output = inputs.standard_output](compile::Compiled& compiled, train::RankLink& link,
                                                               const metrics::RunFolder& folder) {
    const std::unique_ptr<metrics::Display> display = display_of_launcher(link);
    return work_as_rank(compiled,
                        {.display = *display,
                         .folder = folder,
                         .link = link,
                         .profile = profile,
                         .ends_by = ends_by,
                         .standard_input = standard_input,
                         .standard_output = standard_output},
                        context.is_hosted);
  };
  return as_rank(job, context, work, std::move(inputs));
}

}  // namespace shardrun::run
