#include "core/task/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/base/standard_error.h"
#include "core/cli/dump.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/metrics/human.h"

namespace shardrun::cli {
namespace {

void print_results(const metrics::Summary& summary, const job::Job& job) {
  std::string text;
  if (summary.loss) {
    text += fmt::format("loss {:.4f}", *summary.loss);
  }
  if (summary.val_loss) {
    text += fmt::format(", validation loss {:.4f}", *summary.val_loss);
  }
  if (summary.tokens_per_s > 0) {
    text += fmt::format(", {} tok/s, median step {:.1f} ms", metrics::human_count(summary.tokens_per_s),
                        summary.step_ms_median);
  }
  fmt::print("{}{}{} after {} steps; results in {}\n", text, text.empty() ? "" : "; ", summary.status, summary.steps,
             job.output.string());
}

int run(std::span<const std::string> words) {
  const Parsed parsed =
      parse("run", words,
            {set_option(),
             {.name = "json", .help = "print the summary as JSON on standard output, and progress on standard error"},
             {.name = "profile", .help = "print where the time went, by op"},
             dump_option()},
            1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const job::Job job = read_job(parsed);
  if (parsed.has("dump")) {
    return dump(parsed, task::compile(job)) ? 0 : 1;
  }
  catch_stop_signals();
  const bool json = parsed.has("json");
  const metrics::Summary summary =
      task::run(job, {.progress = metrics::descriptor_sink(json ? STDERR_FILENO : STDOUT_FILENO, std::getenv("TERM")),
                      .print = [&](const std::string& text) { fmt::print(json ? stderr : stdout, "{}", text); },
                      .stop_signal = stop_signal,
                      .profile = parsed.has("profile")});
  if (json) {
    fmt::print("{}", metrics::to_json(summary));
  } else if (summary.error.empty()) {
    print_results(summary, job);
  }
  if (!summary.error.empty()) {
    std::fflush(stdout);
    write_to_standard_error(fmt::format("shardrun: {}\n", summary.error));
  }
  return summary.exit_code;
}

const RegisterCommand command({.name = "run", .arguments = "JOB.ini", .help = "run a job", .run = run});

}  // namespace
}  // namespace shardrun::cli
