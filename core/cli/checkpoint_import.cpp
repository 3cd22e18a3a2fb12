#include <fmt/format.h>

#include <cstdint>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/checkpoint/import.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/saved_state.h"
#include "core/checkpoint/tensor_source.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/compile/compile.h"
#include "core/files/folder.h"

namespace shardrun::cli {
namespace {

/// The manifest of a checkpoint that the job could have saved after `step` steps; without files and tensors.
checkpoint::Manifest described(const job::Job& job, const compile::Compiled& compiled, std::int64_t step) {
  return {.step = step,
          .samples = checkpoint::samples_after(job, {}, step),
          .run = compile::identity_of(job, compiled),
          .strategy = "import",
          .mesh = "",
          .precision = job.train.precision == job::Precision::mixed ? "mixed" : "float32",
          .job = job::canonical_text(job),
          .files = {},
          .tensors = {}};
}

int import_weights(std::span<const std::string> words) {
  Parsed parsed = parse("checkpoint import", words,
                        {{.name = "job", .value = "JOB.ini", .help = "the job that is to go on from the checkpoint"},
                         {.name = "output",
                          .value = "FOLDER",
                          .help = "the folder of checkpoints to write into, for --resume=FOLDER",
                          .letter = 'o'},
                         {.name = "step", .value = "N", .help = "steps that count as done (default 0)"},
                         set_option()},
                        1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const std::string files = parsed.positional[0];
  for (const char* option : {"job", "output"}) {
    if (!parsed.has(option)) {
      throw Error(ErrorCode::usage, fmt::format("checkpoint import: --{} is missing", option));
    }
  }
  const std::int64_t step = parsed.integer("step", 0, 0, 1'000'000'000);
  parsed.positional = {*parsed.get("job")};
  const job::Job job = read_job(parsed);
  compile::require_model(job, "checkpoint");
  compile::require_steps(job, "checkpoint");
  catch_stop_signals();
  const checkpoint::TensorFiles source{files};
  if (const std::int64_t last = checkpoint::last_step(job); step > last) {
    throw Error(ErrorCode::usage, fmt::format("checkpoint import: --step is {}, and the job ends after step {}: it "
                                              "could not go on from there",
                                              step, last));
  }
  const compile::Compiled compiled = compile::compile(job);
  if (compiled.dataset != nullptr) {
    compiled.dataset->load();
  }
  const std::filesystem::path made = checkpoint::import_checkpoint(
      source.source(), compiled.graph, *compiled.device, described(job, compiled, step), *parsed.get("output"));
  std::string command = "shardrun " + shell_word(parsed.positional[0]);
  for (const std::string& setting : parsed.all("set")) {
    command += " --set " + shell_word(setting);
  }
  fmt::print("{} in {}\nto go on: {} --resume={}\n",
             counted(static_cast<std::int64_t>(source.source().tensors.size()), "tensor"),
             printable(files::human_path(made)), printable(command), printable(shell_word(*parsed.get("output"))));
  return 0;
}

const RegisterCommand checkpoint_import(
    {.name = "checkpoint import",
     .arguments = "FILES --job JOB.ini -o FOLDER",
     .help = "make a checkpoint for a job from a safetensors file or a folder of them",
     .run = import_weights});

}  // namespace
}  // namespace shardrun::cli
