#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/data/dataset.h"
#include "core/files/steady_file.h"

// This header has what all kinds of data sets share.

namespace shardrun::data {

/// The name of data in messages: the place of its setting, such as "job.ini:12: [data] text".
using Named = std::string;

[[nodiscard]] inline Named name_of(const job::Job& job, std::string_view key) {
  return fmt::format("{}: [data] {}", job.where("data", key), key);
}

/// Calls `act`. If it throws, puts the setting's name before the error's message.
template <class Act>
auto with_name(const Named& name, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", name, error.message()));
  }
}

/// The number of samples in an evaluation. `most`: [data] eval_samples. `available`: the samples for validation.
[[nodiscard]] inline std::int64_t evaluated_samples(std::int64_t most, std::int64_t available) {
  return most > 0 ? std::min(most, available) : available;
}

/// The files of data_files(). They are opened by path, or another process of this host has given them.
class DataFiles {
 public:
  DataFiles() = default;
  /// `given`: the open files, in the order of data_files().
  DataFiles(const job::Job& job, std::vector<files::SteadyFile> given);

  /// Whether another process gave the files. For a text, it gives a file of tokens instead.
  [[nodiscard]] bool are_given() const noexcept { return !given_.empty(); }
  /// Opens a file, or returns the given one. Throws as files::SteadyFile does. REQUIRES: each given file is requested
  /// at most once.
  [[nodiscard]] files::SteadyFile open(const std::filesystem::path& path);

 private:
  std::vector<std::optional<files::SteadyFile>> given_;
};

// Each function opens data of one kind, with the arguments of open_dataset() or attach_dataset().

[[nodiscard]] std::unique_ptr<Dataset> open_arrays(const job::Job& job, DataFiles& files);
[[nodiscard]] std::unique_ptr<Dataset> open_text(const job::Job& job, DataFiles& files);
[[nodiscard]] std::unique_ptr<Dataset> open_tokens(const job::Job& job, DataFiles& files);
/// Opens inputs without targets. `vocab`: as in open_dataset().
[[nodiscard]] std::unique_ptr<Dataset> open_inputs(const job::Job& job, DataFiles& files,
                                                   std::optional<std::int64_t> vocab);

}  // namespace shardrun::data
