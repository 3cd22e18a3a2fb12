#include <chrono>

#include "core/base/error.h"
#include "core/cli/options.h"
#include "core/compile/plugins.h"
#include "core/job/raw.h"
#include "core/launch/rank.h"
#include "core/metrics/run_files.h"
#include "core/run/launched.h"
#include "core/run/rank_process.h"
#include "core/verify/job.h"

namespace shardrun::cli {
namespace {

int rank(std::span<const std::string> words) {
  const std::optional<launch::RankContext> context = launch::take_rank_context();
  const Parsed parsed = parse("rank", words,
                              {{.name = "folder", .value = "PATH", .help = "a path into the open output folder"},
                               {.name = "profile", .help = "as of run"},
                               {.name = run::data_option, .value = "HANDLES", .help = "open files of the launcher"},
                               {.name = run::declared_option, .value = "HASH", .help = "of what the model declares"},
                               {.name = run::slots_option, .value = "N", .help = "in place of slots = auto"},
                               {.name = run::resume_option, .value = "PATH", .help = "the checkpoint to go on from"},
                               {.name = run::ends_by_option, .value = "TIME", .help = "when the run has to end"},
                               {.name = run::standard_option, .value = "HANDLES", .help = "as data"},
                               {.name = "record-steps", .value = "N", .help = "steps to record for verify"},
                               {.name = "record-evaluation", .value = "yes|no", .help = "and an evaluation"}},
                              1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  if (!context) {
    throw Error(ErrorCode::usage, "rank: a run starts its ranks itself: use shardrun run JOB.ini");
  }
  // The launcher has replaced placeholders in the path, so braces that are left are literal.
  const std::filesystem::path folder = parsed.get("folder").value_or("");
  const std::string text = job::read_source(metrics::job_path(folder));
  job::Job job = job::parse_job(job::read_job_text(text, parsed.positional.at(0), {}), compile::schema_providers());
  job.checkpoints.resume = parsed.get(run::resume_option).value_or("never");
  job.infer.slots = parsed.integer(run::slots_option, job.infer.slots, 0, INT64_MAX);
  run::RankInputs inputs = {.folder = folder,
                            .declared = parsed.get(run::declared_option).value_or(""),
                            .data = run::data_handles(parsed.get(run::data_option).value_or(""))};
  if (const auto standard = run::data_handles(parsed.get(run::standard_option).value_or("")); !standard.empty()) {
    inputs.standard_input = std::stoi(standard.at(0));
    inputs.standard_output = std::stoi(standard.at(1));
  }
  if (parsed.has(run::ends_by_option)) {
    inputs.ends_by.emplace(std::chrono::duration_cast<std::chrono::system_clock::duration>(
        std::chrono::duration<double>(parsed.real(run::ends_by_option, 0, 0, 1e18))));
  }
  if (parsed.has("record-steps")) {
    job.checkpoints.used = false;
    return verify::record_as_rank(job, *context, parsed.integer("record-steps", 1, 1, INT64_MAX),
                                  parsed.get("record-evaluation") == "yes", std::move(inputs));
  }
  return run::run_as_rank(job, *context, parsed.has("profile"), std::move(inputs));
}

const RegisterCommand rank_command(
    {.name = "rank", .arguments = "JOB.ini", .help = "one rank of a job, started by run", .run = rank, .hidden = true});

}  // namespace
}  // namespace shardrun::cli
