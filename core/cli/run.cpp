#include "core/cli/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/process.h"
#include "core/base/standard_error.h"
#include "core/base/text.h"
#include "core/cli/dump.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/data/dataset.h"
#include "core/files/folder.h"
#include "core/job/output.h"
#include "core/launch/world.h"
#include "core/metrics/locked_run_folder.h"
#include "core/metrics/log.h"
#include "core/metrics/record.h"
#include "core/metrics/run_files.h"
#include "core/run/hosted.h"
#include "core/run/run.h"
#include "core/train/steps.h"

namespace shardrun::cli {
namespace {

/// Prints text. Throws Error{io} if it cannot be written completely, unless the run failed or nobody reads in time.
void show(const std::string& text, int exit_code) {
  std::fflush(stdout);
  if (const int error = write_for_person(STDOUT_FILENO, text); error != 0 && error != EAGAIN && exit_code == 0) {
    throw Error(ErrorCode::io, "standard output cannot be written: what was printed is incomplete");
  }
}

/// Whether the job writes predictions to standard output.
bool has_predictions(const job::Job& job) { return job.task == job::Task::infer && job::is_standard(job.infer.to); }

const char* noun_of_steps(const job::Job& job) {
  return job::generates(job)            ? "answer"
         : job::applies_model(job)      ? "sample"
         : job.task == job::Task::infer ? "record"
                                        : "step";
}

/// Where the results are: "; results in runs/job". "" if there are none to be found.
std::string place_of_results(const metrics::Summary& summary, const job::Job& job,
                             const std::filesystem::path& output) {
  const bool is_array = job.task == job::Task::infer && !job::generates(job);
  const std::string target = has_predictions(job) ? "standard output" : files::human_path(job.infer.to);
  std::error_code none;
  const bool is_stream = has_predictions(job) || (std::filesystem::exists(job.infer.to, none) &&
                                                  !std::filesystem::is_regular_file(job.infer.to, none));
  const bool has_records = !job::applies_model(job) || data::reads_records(job);
  if (is_array && summary.exit_code != 0) {
    return is_stream     ? fmt::format("; what was written to {} is incomplete", target)
           : has_records ? ""  // if the file has records, a line has told of them
                         : fmt::format("; no results were written to {}", target);
  }
  if (job.infer.events || (summary.steps == 0 && (has_predictions(job) || job::generates(job)))) {
    return "";
  }
  const std::filesystem::path earlier = metrics::earlier_path(output);
  return fmt::format("; results in {}{}", job.task == job::Task::infer ? target : files::human_path(output),
                     metrics::has_earlier_run(output)
                         ? fmt::format(", those of an earlier run in {}", files::human_path(earlier))
                         : "");
}

void print_results(const metrics::Summary& summary, const job::Job& job, const std::filesystem::path& output) {
  std::string text;
  if (summary.loss) {
    text += fmt::format("loss {:.4f}", *summary.loss);
  }
  if (summary.val_loss) {
    text += fmt::format("{}validation loss {:.4f}", text.empty() ? "" : ", ", *summary.val_loss);
  }
  if (summary.tokens_per_s > 0) {
    text += fmt::format("{}{} {}/s{}", text.empty() ? "" : ", ", human_count(summary.tokens_per_s),
                        train::rate_unit(job), job::generates(job) ? " of answers" : "");
  }
  if (summary.step_ms_median) {
    text += fmt::format("{}median step {}", text.empty() ? "" : ", ", human_time(*summary.step_ms_median / 1e3));
  }
  const std::int64_t step = summary.first_step + summary.steps;
  const std::string place = summary.first_step > 0 ? fmt::format(", at step {}", step) : "";
  const bool is_unsaved =
      summary.checkpoints && summary.checkpoints->failed > 0 && summary.checkpoints->last_step != step;
  const std::string slow = metrics::text_of(summary.slow_ranks);
  const bool has_none = job::generates(job) && summary.status == "stopped" && summary.steps == 0;
  const std::string count =
      has_none ? "before an answer was complete" : fmt::format("after {}", counted(summary.steps, noun_of_steps(job)));
  text = fmt::format("{}{}{} {}{}{}{}{}{}\n", text, text.empty() ? "" : "; ", summary.status, count, place,
                     is_unsaved ? ", without a checkpoint of it" : "", slow.empty() ? "" : "; ", slow,
                     place_of_results(summary, job, output));
  if (has_predictions(job)) {
    write_to_standard_error(printable_lines(text));
  } else {
    show(printable_lines(text), summary.exit_code);
  }
}

/// Handles results of a run that could not be printed. Adds the error to the summary, and keeps the run's status
/// because its files are complete. Returns the exit code.
int untold(metrics::Summary summary, const std::filesystem::path& output, const Error& error) {
  summary.exit_code = exit_code(error.code());
  summary.error = error.message();
  if (!summary.origin.ended.empty()) {  // an empty `ended` means that no summary was written
    try {
      const metrics::LockedRunFolder folder(output);
      metrics::write_summary(metrics::summary_path(folder.root()), summary);
    } catch (const Error&) {
      // Another run has taken over the folder.
    }
  }
  write_to_standard_error(fmt::format("shardrun: {}\n", printable_lines(summary.error)));
  return summary.exit_code;
}

/// How many of the words, from the first on, say where the run begins: 0, 1 or 2.
std::size_t words_of_resume(std::span<const std::string> words) {
  if (words[0] == "--set" && words.size() > 1 && words[1].starts_with("checkpoint.resume=")) {
    return 2;
  }
  return words[0].starts_with("--resume") || words[0].starts_with("--set=checkpoint.resume=") ? 1 : 0;
}

/// The command that continues this run, or repeats it if it saved nothing: "to go on: shardrun run job.ini --resume".
/// `folder`: the run's folder if the next run will use another one, otherwise "".
std::string how_to_go_on(const metrics::RunOrigin& origin, bool has_saved, const std::string& folder) {
  const std::span<const std::string> words = origin.command;
  std::string text = "to go on:";
  bool was_resumed = false;
  for (std::size_t i = 0; i < words.size();) {
    const std::size_t count = words_of_resume(words.subspan(i));
    was_resumed = was_resumed || count > 0;
    if (count == 0 || !has_saved) {
      text += " " + shell_word(words[i]);
    }
    i += count == 0 || !has_saved ? 1 : count;
  }
  if (has_saved && !folder.empty()) {
    return text + " " + shell_word("--resume=" + folder) + "\n";
  }
  const bool stays = !has_saved && (was_resumed || !folder.empty());
  return text + (stays ? "\n" : " --resume\n");
}

/// This process's place among ranks that another launcher started. Nothing if there is none, or with --launch here.
std::optional<launch::World> world_of(const Parsed& parsed) {
  const std::string how = parsed.get("launch").value_or("auto");
  if (how != "auto" && how != "here") {
    throw Error(ErrorCode::usage, fmt::format("--launch is '{}'; it can be auto or here", how));
  }
  if (how == "here") {
    return std::nullopt;
  }
  launch::require_whole_world();
  return launch::world_of();
}

/// Runs this process as one of another launcher's ranks. The first rank reports errors. Other ranks report the errors
/// of which the first rank does not learn.
int run_as_one_of(const launch::World& world, const job::Job& job, const run::RunSettings& settings,
                  const std::function<int(const metrics::Summary&)>& tell) {
  if (world.rank == 0) {
    catch_stop_signals();
    return run::run_hosted_first(job, world, settings, [&](const metrics::Summary& summary) {
      const int code = tell(summary);
      ignore_stop_signals();
      return code;
    });
  }
  const int code = run::run_hosted_other(job, world, settings, catch_stop_signals);
  ignore_stop_signals();
  return code;
}

/// Where progress is shown. Other launchers mix pieces of their ranks' output, so that only whole lines are readable,
/// although mpirun gives the first rank a terminal.
screen::ProgressSink progress_sink(int descriptor, bool is_one_of_world) {
  screen::ProgressSink sink = screen::descriptor_sink(descriptor, std::getenv("TERM"));
  sink.is_terminal = sink.is_terminal && !is_one_of_world;
  return sink;
}

metrics::RunOrigin origin_of(const std::string& command, std::span<const std::string> words,
                             metrics::WallTime started) {
  metrics::RunOrigin origin = {.version = SHARDRUN_VERSION,
                               .command = {"shardrun", command},
                               .host = host_name(),
                               .started = metrics::utc_text(started)};
  origin.command.insert(origin.command.end(), words.begin(), words.end());
  return origin;
}

int run(std::span<const std::string> words) {
  std::vector<OptionSyntax> options = run_options();
  options.push_back({.name = "replace",
                     .help = "replace the run in the output folder, even if it is of a different job, and [infer] to"});
  std::ranges::move(resume_options(), std::back_inserter(options));
  std::ranges::move(dump_options(), std::back_inserter(options));
  const Parsed parsed = parse("run", with_resume_set(words), options, 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const job::Job job = read_job(parsed);
  if (wants_dump(parsed, job)) {
    compile::require_model(job, "graph, plan or program");
    dump(parsed, job, compile::compile(job));
    return 0;
  }
  return run_job("run", words, parsed, job);
}

const RegisterCommand run_command({.name = "run", .arguments = "JOB.ini", .help = "run a job", .run = run});

}  // namespace

std::vector<OptionSyntax> run_options() {
  return {
      set_option(),
      {.name = "json", .help = "print the summary as JSON on standard output, and progress on standard error"},
      {.name = "profile", .help = "print where the time went, by op"},
      {.name = "launch",
       .value = "HOW",
       .help = "here: start all ranks on this machine; auto (default): the same, unless mpirun, srun or the variables "
               "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT make this process one of the ranks"}};
}

int run_quietly(const std::string& command, std::span<const std::string> words, job::Job job) {
  const metrics::WallTime started = std::chrono::system_clock::now();
  const run::RunSettings settings = {.progress = progress_sink(STDERR_FILENO, false),
                                     .stop_signal = stop_signal,
                                     .replaces = true,
                                     .on_stop = listen_for_stop,
                                     .origin = origin_of(command, words, started),
                                     .output = job.output};
  catch_stop_signals();
  const metrics::Summary summary = run::run_job(job, settings);
  if (!summary.error.empty()) {
    write_to_standard_error(fmt::format("shardrun: {}\n", printable_lines(summary.error)));
  }
  return summary.exit_code;
}

int run_job(const std::string& command, std::span<const std::string> words, const Parsed& parsed, job::Job job) {
  const metrics::WallTime started = std::chrono::system_clock::now();
  job::require_own_checkpoints(job);
  const bool json = parsed.has("json") && !job.infer.timings;  // answers with timings are JSON themselves
  if (json && has_predictions(job)) {
    throw Error(ErrorCode::usage, "--json prints on standard output, which [infer] to = - gives to the predictions");
  }
  const std::optional<launch::World> world = world_of(parsed);
  const bool is_one_of = world && (world->size > 1 || job.ranks > 1);
  const run::RunSettings settings = {
      .progress = progress_sink(json || has_predictions(job) ? STDERR_FILENO : STDOUT_FILENO, is_one_of),
      .stop_signal = stop_signal,
      .profile = parsed.has("profile"),
      .replaces = parsed.has("replace") || command != "run",
      .replaces_file = parsed.has("replace"),
      .on_stop = listen_for_stop,
      .origin = origin_of(command, words, started),
      .ends_by = job.time_limit == 0 ? std::nullopt
                                     : std::optional(started + std::chrono::duration_cast<metrics::WallTime::duration>(
                                                                   std::chrono::duration<double>(job.time_limit))),
      .output = job::resolved_output(job, started)};
  const bool has_new_folder = job::has_placeholder(job) && job.checkpoints.folder.empty();
  const auto tell = [&](const metrics::Summary& summary) {
    try {
      if (json) {
        show(metrics::to_json(summary), summary.exit_code);
      } else if (summary.error.empty()) {
        print_results(summary, job, settings.output);
      }
    } catch (const Error& error) {
      return untold(summary, settings.output, error);
    }
    if (!summary.error.empty()) {
      std::fflush(stdout);
      write_to_standard_error(fmt::format("shardrun: {}\n", printable_lines(summary.error)));
    }
    if (summary.status == "stopped" && job.checkpoints.used) {
      const bool has_saved = summary.checkpoints && summary.checkpoints->last_step >= 0;
      const std::string folder = has_new_folder ? files::human_path(settings.output) : "";
      write_to_standard_error(how_to_go_on(origin_of(command, words, started), has_saved, folder));
    }
    return summary.exit_code;
  };
  if (is_one_of) {
    return run_as_one_of(*world, job, settings, tell);
  }
  job.output = settings.output;
  catch_stop_signals();
  return tell(run::run_job(job, settings));
}

}  // namespace shardrun::cli
