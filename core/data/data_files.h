#pragma once

#include <fmt/format.h>

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

// What the kinds of data sets share.

namespace shardrun::data {

/// The name of data in messages: the place of its setting, such as "job.ini:12: [data] text".
using Named = std::string;

[[nodiscard]] inline Named name_of(const job::Job& job, std::string_view key) {
  return fmt::format("{}: [data] {}", job.where("data", key), key);
}

/// Calls `act`. Errors about the file get the name of its setting.
template <class Act>
auto with_name(const Named& name, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", name, error.message()));
  }
}

/// The files that data_files() lists, opened by path or inherited from another process of this host.
class DataFiles {
 public:
  DataFiles() = default;
  /// `given`: the open files, in the order of data_files().
  DataFiles(const job::Job& job, std::vector<files::SteadyFile> given);

  /// Whether another process gave the files. For texts it gave the tokens instead.
  [[nodiscard]] bool are_given() const noexcept { return !given_.empty(); }
  /// Opens a file, or returns a given one. Throws as files::SteadyFile does. REQUIRES: a given file is requested only
  /// once.
  [[nodiscard]] files::SteadyFile open(const std::filesystem::path& path);

 private:
  std::vector<std::optional<files::SteadyFile>> given_;
};

// Each of these opens data of one kind. `files`: as in open_dataset() and attach_dataset().

[[nodiscard]] std::unique_ptr<Dataset> open_arrays(const job::Job& job, DataFiles& files);
[[nodiscard]] std::unique_ptr<Dataset> open_text(const job::Job& job, DataFiles& files);
[[nodiscard]] std::unique_ptr<Dataset> open_tokens(const job::Job& job, DataFiles& files);
/// Inputs without targets. `vocab`: as in open_dataset().
[[nodiscard]] std::unique_ptr<Dataset> open_inputs(const job::Job& job, DataFiles& files,
                                                   std::optional<std::int64_t> vocab);

}  // namespace shardrun::data
