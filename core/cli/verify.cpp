#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/base/text.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/launch/world.h"
#include "core/verify/job.h"

namespace shardrun::cli {
namespace {

constexpr std::int64_t default_steps = 3;

int verify(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "verify", words,
      {set_option(),
       {.name = "steps",
        .value = "N",
        .help =
            "how many steps, batches of predictions or prompts to run and compare (default 3, or as many as the job "
            "has)"},
       {.name = "tensors",
        .value = "GLOB",
        .help = "compare only matching tensors, such as 'layer.0/*', with a parameter's gradient and optimizer "
                "states (may be repeated). Without the loss there is no evaluation",
        .repeated = true},
       {.name = "in-process",
        .help = "run all ranks in this process, one after the other, without a transport: checks plan and kernels"},
       {.name = "rows", .value = "N", .help = "how many of the worst tensors to print (default 10)"},
       {.name = "json", .help = "print JSON on standard output, and progress on standard error"}},
      1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const job::Job job = read_job(parsed);
  if (const std::optional<launch::World> world = launch::world_of(); world && world->size > 1) {
    throw Error(ErrorCode::usage,
                fmt::format("verify starts the ranks of its job itself, and this is one of {} processes that {} "
                            "started: start it once, by itself",
                            world->size, world->launcher));
  }
  const std::int64_t most = job::applies_model(job) ? INT32_MAX : std::max<std::int64_t>(1, job::steps_of(job));
  const std::int64_t steps = parsed.integer("steps", std::min(default_steps, most), 1, most);
  const auto rows = static_cast<std::size_t>(parsed.integer("rows", 10, 1, 1'000'000));
  const bool json = parsed.has("json");
  const int screen = json ? STDERR_FILENO : STDOUT_FILENO;
  catch_stop_signals();
  verify::JobSettings settings;
  settings.steps = steps;
  settings.tensors = parsed.all("tensors");
  settings.in_process = parsed.has("in-process");
  settings.run.progress = screen::descriptor_sink(screen, std::getenv("TERM"));
  settings.run.stop_signal = stop_signal;
  const verify::JobOutcome outcome = verify::verify_job(job, settings);
  if (!outcome.summary.error.empty()) {
    return tell_error(outcome.summary.error, outcome.summary.exit_code, json);
  }
  if (outcome.summary.exit_code != 0) {
    return tell_error("stopped before everything was compared", outcome.summary.exit_code, json);
  }
  fmt::print("{}",
             json ? verify::to_json(outcome.report, rows) : printable_lines(verify::to_text(outcome.report, rows)));
  return outcome.report.passed() ? 0 : 1;
}

const RegisterCommand verify_command({.name = "verify",
                                      .arguments = "JOB.ini",
                                      .help = "compare a job as configured with the float64 reference on one rank",
                                      .run = verify});

}  // namespace
}  // namespace shardrun::cli
