#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/weights.h"
#include "core/cli/options.h"
#include "core/files/scratch_folder.h"
#include "core/infer/prompts.h"
#include "core/job/raw.h"

namespace shardrun::cli {

/// A job that applies a model: made from a run, a checkpoint, a weights file, a folder of Hugging Face's libraries or a
/// GGUF file, for the options --ranks, --strategy, --transport and --set of `command`. `overrides`: settings of the
/// command line, such as "infer.to=-". Throws Error{usage, data}.
[[nodiscard]] job::RawJob job_of_weights(const Parsed& parsed, const std::string& command,
                                         const std::filesystem::path& path, const std::vector<std::string>& overrides);

/// The options of generating_job() that say how the model is kept and split.
[[nodiscard]] std::vector<OptionSyntax> generating_options();

/// A job that continues prompts: job_of_weights(), or the job file that the command line names, with the command's
/// options, such as --ranks and --temperature, as settings. `defaults`: settings that count unless the command line or
/// the job file gives them.
[[nodiscard]] job::RawJob generating_job(const Parsed& parsed, const std::string& command,
                                         const std::vector<std::pair<std::string, std::string>>& defaults);

/// Throws Error{usage, data} if a job cannot continue prompts with the model. `path`: of its weights.
void require_generating(const checkpoint::TrainedModel& trained, const std::string& path);

/// A job that continues prompts and tells events, for a process of this program that another one writes prompts to.
class EventJob {
 public:
  /// Checks the job: generating_job(), with the settings that events need. Throws Error{usage, job, data}.
  EventJob(const Parsed& parsed, const std::string& command, std::vector<std::pair<std::string, std::string>> defaults);

  /// The words with which this program runs the job. Its records are in a folder that this object removes.
  [[nodiscard]] const std::vector<std::string>& words() const noexcept { return words_; }
  /// Of the job's model.
  [[nodiscard]] const infer::Language& language() const noexcept { return *language_; }

 private:
  files::ScratchFolder folder_;
  std::vector<std::string> words_;
  std::optional<infer::Language> language_;
};

}  // namespace shardrun::cli
