#include "core/metrics/run_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string>

#include "core/metrics/run_folder.h"
#include "core/metrics/summary.h"

namespace shardrun::metrics {
namespace {

bool take_prefix(std::string_view& text, std::string_view prefix) {
  const bool found = text.starts_with(prefix);
  text.remove_prefix(found ? prefix.size() : 0);
  return found;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  const bool found = text.ends_with(suffix);
  text.remove_suffix(found ? suffix.size() : 0);
  return found;
}

/// The step in a text of digits: 100 for 000100.
std::optional<std::int64_t> step_of(std::string_view name) {
  std::int64_t step = 0;
  if (name.size() < 6) {
    return std::nullopt;
  }
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), step);
  return failed == std::errc() && end == name.data() + name.size() && step >= 0 ? std::optional(step) : std::nullopt;
}

/// The step in a state's file name: 100 for state-000100.safetensors.
std::optional<std::int64_t> step_of_state(std::string_view name) {
  return take_prefix(name, "state-") && take_suffix(name, ".safetensors") ? step_of(name) : std::nullopt;
}

/// The step of files without a step in their names, which were saved after the last step.
constexpr std::int64_t last_of_all = std::numeric_limits<std::int64_t>::max();

/// The step in an output's file name: 100 for NAME-000100; last_of_all for NAME.
std::int64_t step_behind(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  return (dash == std::string_view::npos ? std::nullopt : step_of(name.substr(dash + 1))).value_or(last_of_all);
}

std::optional<std::int64_t> step_of_output(std::string_view name) {
  return take_suffix(name, ".npy") ? std::optional(step_behind(name)) : std::nullopt;
}

std::optional<std::int64_t> step_of_picture(std::string_view name) {
  return take_suffix(name, ".png") || take_suffix(name, ".gif") ? std::optional(step_behind(name)) : std::nullopt;
}

/// Calls `take` with the step and the path of each file of a folder for whose name `step_of_name` returns a step.
template <typename StepOfName, typename Take>
void for_saved(const std::filesystem::path& folder, const StepOfName& step_of_name, std::error_code& failed,
               const Take& take) {
  for (auto entry = std::filesystem::directory_iterator(folder, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (const std::optional<std::int64_t> step = step_of_name(entry->path().filename().native())) {
      take(*step, entry->path());
    }
  }
}

constexpr std::array<std::string_view, 7> replaced_files = {
    "job.ini", "metrics.csv", "sample.txt", "state.safetensors", "summary.json", "trace.json", "weights.safetensors"};

bool is_replaced_file(std::string_view name) {
  return step_of_state(name) || std::ranges::find(replaced_files, name) != replaced_files.end();
}

bool is_result(std::string_view name) {
  return name == "metrics.jsonl" || name == "ranks.jsonl" || is_replaced_file(name);
}

}  // namespace

std::filesystem::path metrics_path(const std::filesystem::path& output) { return output / "metrics.jsonl"; }

std::filesystem::path csv_path(const std::filesystem::path& output) { return output / "metrics.csv"; }

std::filesystem::path events_folder(const std::filesystem::path& output) { return output / "tensorboard"; }

bool is_of_events(const std::filesystem::path& path) {
  return path.filename().native().starts_with("events.out.tfevents.");
}

std::filesystem::path ranks_path(const std::filesystem::path& output) { return output / "ranks.jsonl"; }

std::filesystem::path summary_path(const std::filesystem::path& output) { return output / "summary.json"; }

std::filesystem::path log_path(const std::filesystem::path& output, int rank) {
  return output / "log" / fmt::format("rank-{}.log", rank);
}

std::filesystem::path job_path(const std::filesystem::path& output) { return output / "job.ini"; }

std::filesystem::path sample_path(const std::filesystem::path& output) { return output / "sample.txt"; }

std::filesystem::path weights_path(const std::filesystem::path& output) { return output / "weights.safetensors"; }

std::filesystem::path state_path(const std::filesystem::path& output) { return output / "state.safetensors"; }

std::filesystem::path state_path(const std::filesystem::path& output, std::int64_t step) {
  return output / fmt::format("state-{:06}.safetensors", step);
}

std::filesystem::path outputs_path(const std::filesystem::path& output) { return output / "outputs"; }

std::filesystem::path pictures_path(const std::filesystem::path& output) { return output / "pictures"; }

std::filesystem::path picture_path(const std::filesystem::path& output, std::string name,
                                   std::optional<std::int64_t> step, std::string_view extension) {
  std::ranges::replace(name, '/', '-');
  return pictures_path(output) / fmt::format("{}{}{}", name, step ? fmt::format("-{:06}", *step) : "", extension);
}

std::filesystem::path trace_path(const std::filesystem::path& output) { return output / "trace.json"; }

std::filesystem::path trace_path(const std::filesystem::path& output, int rank) {
  return trace_folder(output) / fmt::format("rank-{}.json", rank);
}

std::filesystem::path trace_folder(const std::filesystem::path& output) { return output / "trace"; }

std::filesystem::path flight_folder(const std::filesystem::path& output) { return output / "flight"; }

std::filesystem::path attempts_path(const std::filesystem::path& output) { return output / "attempts"; }

std::filesystem::path earlier_path(const std::filesystem::path& output) { return output / "earlier-run"; }

bool has_earlier_run(const std::filesystem::path& output) {
  std::error_code none;
  return std::filesystem::is_directory(std::filesystem::symlink_status(earlier_path(output), none)) &&
         text_in_summary(earlier_path(output), "saved") == "new";
}

bool keeps_earlier(const std::filesystem::path& output, const Kept& kept) {
  return kept.results && !kept.metrics && text_in_summary(output, "saved") == "new" &&
         (!has_earlier_run(output) || text_in_summary(output, "status") == "finished");
}

std::filesystem::path lock_path(const std::filesystem::path& output) { return output / lock_name; }

bool is_of_a_run(const std::filesystem::path& output) {
  std::error_code none;
  return std::filesystem::exists(lock_path(output), none);
}

std::filesystem::path foreign_result(const std::filesystem::path& output, const std::filesystem::path& except) {
  std::filesystem::path found;
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(output, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    std::error_code none;
    if (is_result(entry->path().filename().native()) &&
        (except.empty() || !std::filesystem::equivalent(entry->path(), except, none)) &&
        (found.empty() || entry->path() < found)) {
      found = entry->path();
    }
  }
  // Checked in this order: a run creates its lock before its files, so the files of a run that is just beginning are
  // not reported.
  return found.empty() || is_of_a_run(output) ? std::filesystem::path() : found;
}

bool is_written_by_runs(const std::filesystem::path& file, const std::filesystem::path& output) {
  const auto lies_below = [](const std::filesystem::path& path, const std::filesystem::path& folder) {
    return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
  };
  const auto lies_in = [](const std::filesystem::path& path, const std::filesystem::path& folder) {
    std::error_code none;  // the folder may not exist
    return std::filesystem::weakly_canonical(path.parent_path(), none) ==
           std::filesystem::weakly_canonical(folder, none);
  };
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::canonical(file, failed);
  const std::filesystem::path whole = std::filesystem::canonical(output, failed);
  if (lies_below(target, attempts_path(whole)) || lies_below(target, earlier_path(whole))) {
    return true;
  }
  for (const std::filesystem::path& path : {file, target}) {
    const std::string name = path.filename().string();
    // Names first: to resolve folders takes long if there are many files.
    if (((is_result(name) || is_unfinished(name) || name == lock_path(output).filename()) && lies_in(path, output)) ||
        (is_of_rank(path, ".log") && lies_in(path, output / "log")) ||
        ((path.extension() == ".npy" || is_unfinished(name)) && lies_in(path, outputs_path(output))) ||
        ((step_of_picture(name) || is_unfinished(name)) && lies_in(path, pictures_path(output))) ||
        (is_of_events(path) && lies_in(path, events_folder(output))) ||
        ((is_of_rank(path, ".json") || is_unfinished(name)) && lies_in(path, trace_folder(output))) ||
        ((is_of_rank(path, ".jsonl") || is_of_rank(path, ".record")) && lies_in(path, flight_folder(output)))) {
      return true;
    }
  }
  return false;
}

std::uint64_t bytes_to_remove(const std::filesystem::path& output, const Kept& kept) {
  if (!is_of_a_run(output) || keeps_earlier(output, kept)) {
    return 0;
  }
  std::error_code none;
  std::vector<std::filesystem::path> files = old_states(output, kept, none);
  files.insert(files.end(),
               {metrics_path(output), csv_path(output), ranks_path(output), trace_path(output), sample_path(output)});
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(events_folder(output), failed);
       !kept.metrics && !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (is_of_events(entry->path())) {
      files.push_back(entry->path());
    }
  }
  for (auto entry = std::filesystem::recursive_directory_iterator(earlier_path(output), failed);
       !kept.results && !kept.metrics && !failed && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(failed)) {
    files.push_back(entry->path());
  }
  std::uint64_t bytes = 0;
  for (const std::filesystem::path& file : files) {
    struct stat status = {};
    if (::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

std::map<std::int64_t, std::filesystem::path> states_under_way(const std::filesystem::path& output) {
  std::map<std::int64_t, std::filesystem::path> found;
  std::error_code failed;
  for_saved(output, step_of_state, failed, [&](std::int64_t step, const auto& path) { found.emplace(step, path); });
  return found;
}

std::map<std::int64_t, std::filesystem::path> outputs_under_way(const std::filesystem::path& output,
                                                                std::string_view name) {
  std::map<std::int64_t, std::filesystem::path> found;
  std::error_code failed;
  const auto step_of_name = [&](std::string_view file) {
    return take_prefix(file, name) && take_prefix(file, "-") && take_suffix(file, ".npy") ? step_of(file)
                                                                                          : std::nullopt;
  };
  for_saved(outputs_path(output), step_of_name, failed,
            [&](std::int64_t step, const auto& path) { found.emplace(step, path); });
  return found;
}

std::vector<SavedPicture> pictures_of(const std::filesystem::path& output) {
  std::vector<SavedPicture> found;
  std::error_code failed;
  for_saved(pictures_path(output), step_of_picture, failed, [&](std::int64_t step, const std::filesystem::path& path) {
    const std::string name = path.stem().string();
    const bool is_last = step == last_of_all;
    found.push_back({.field = is_last ? name : name.substr(0, name.rfind('-')),
                     .step = is_last ? std::nullopt : std::optional(step),
                     .path = path});
  });
  std::ranges::sort(found, {}, &SavedPicture::path);
  return found;
}

bool has_name_of_state(const std::filesystem::path& file) {
  return file.filename() == state_path({}) || step_of_state(file.filename().native());
}

bool is_of_rank(const std::filesystem::path& path, std::string_view extension) {
  return path.filename().native().starts_with("rank-") && path.extension() == extension;
}

bool is_unfinished(std::string_view name) {
  const bool is_temporary = name.starts_with('.') && take_suffix(name, ".tmp") && take_prefix(name, ".");
  return is_temporary && ((name.starts_with("rank-") && name.ends_with(".json")) || name.ends_with(".npy") ||
                          step_of_picture(name) || is_replaced_file(name));
}

std::vector<std::filesystem::path> old_states(const std::filesystem::path& output, const Kept& kept,
                                              std::error_code& failed) {
  std::vector<std::filesystem::path> found;
  const auto collect = [&](std::int64_t step, const std::filesystem::path& path) {
    std::error_code none;
    const bool is_result = kept.metrics && step == last_of_all;  // stays until a new one replaces it
    if (step > kept.step && !is_result && !std::filesystem::equivalent(path, kept.file, none)) {
      found.push_back(path);
    }
  };
  for_saved(output, step_of_state, failed, collect);
  if (std::error_code none; !failed && std::filesystem::exists(outputs_path(output), none)) {
    for_saved(outputs_path(output), step_of_output, failed, collect);
  }
  if (std::error_code none; !failed && std::filesystem::exists(pictures_path(output), none)) {
    for_saved(pictures_path(output), step_of_picture, failed, collect);
  }
  return found;
}

}  // namespace shardrun::metrics
