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

/// Makes a job that applies the model at `path`: a run, a checkpoint, a weights file, a folder of Hugging Face's
/// libraries or a GGUF file. `parsed`: its --ranks, --strategy and --transport decide which settings of the run are
/// kept. `overrides`: settings such as "infer.to=-". Throws Error{usage, job, data, io}.
[[nodiscard]] job::RawJob job_of_weights(const Parsed& parsed, const std::string& command,
                                         const std::filesystem::path& path, const std::vector<std::string>& overrides);

/// The folder of the run of a job that trains. Throws Error{usage} for other jobs, and if the run is not there.
[[nodiscard]] std::filesystem::path run_of_job(const std::string& command, const std::filesystem::path& path);

/// The options of generating_job() that say how the model is kept and split.
[[nodiscard]] std::vector<OptionSyntax> generating_options();

/// Makes a job that continues prompts, by job_of_weights() or from the job file that the command line names. Options of
/// the command, such as --ranks and --temperature, become settings. `defaults`: settings that count unless the command
/// line or the job file gives them. Throws as job_of_weights() does.
[[nodiscard]] job::RawJob generating_job(const Parsed& parsed, const std::string& command,
                                         const std::vector<std::pair<std::string, std::string>>& defaults);

/// Throws Error{usage, data} if a job cannot continue prompts with the model. `path`: names the model in the message.
void require_generating(const checkpoint::TrainedModel& trained, const std::string& path);

/// A job that continues prompts in a child process. This process writes prompts to the child and reads its events.
class EventJob {
 public:
  /// Makes the job by generating_job(), with the settings that events need. Throws Error{usage, job, data}.
  EventJob(const Parsed& parsed, const std::string& command, std::vector<std::pair<std::string, std::string>> defaults);

  /// The words with which this program runs the job. Its records are in a folder that this object removes.
  [[nodiscard]] const std::vector<std::string>& words() const noexcept { return words_; }
  /// The tokenizer and the chat template of the job's model.
  [[nodiscard]] const infer::Language& language() const noexcept { return *language_; }

 private:
  files::ScratchFolder folder_;
  std::vector<std::string> words_;
  std::optional<infer::Language> language_;
};

}  // namespace shardrun::cli
