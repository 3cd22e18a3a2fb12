#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cli/options.h"
#include "core/job/raw.h"

namespace shardrun::cli {

/// Settings that a command gives to a job which it makes itself. Those of --set come first, and stand against defaults.
class Overrides {
 public:
  explicit Overrides(const Parsed& parsed) : all_(parsed.all("set")) {}

  void set(std::string_view setting, std::string_view value);
  void set_default(std::string_view setting, std::string_view value);
  /// Sets what options stand for, if they are given. `options`: their names, and the settings'.
  void set_by(const Parsed& parsed, std::span<const std::pair<const char*, const char*>> options);

  [[nodiscard]] const std::vector<std::string>& all() const noexcept { return all_; }

 private:
  std::vector<std::string> all_;  ///< such as "job.ranks=2"
};

/// The options that say how a job is split.
inline constexpr std::pair<const char*, const char*> splitting_options[] = {
    {"threads", "job.threads"}, {"ranks", "job.ranks"}, {"strategy", "job.strategy"}, {"transport", "job.transport"}};

/// A job that applies a model: made from a run, a checkpoint, a weights file, a folder of Hugging Face's libraries or a
/// GGUF file, for the options --ranks, --strategy, --transport and --set of `command`. `overrides`: settings of the
/// command line, such as "infer.to=-". Throws Error{usage, data}.
[[nodiscard]] job::RawJob job_of_weights(const Parsed& parsed, const std::string& command,
                                         const std::filesystem::path& path, const std::vector<std::string>& overrides);

}  // namespace shardrun::cli
