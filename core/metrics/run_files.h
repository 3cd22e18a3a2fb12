#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace shardrun::metrics {

// Paths of the parts of a run in its output folder.

[[nodiscard]] std::filesystem::path metrics_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path csv_path(const std::filesystem::path& output);
/// The folder of TensorBoard's files of events, one for each start of the first rank; and whether a file's name is that
/// of such a file.
[[nodiscard]] std::filesystem::path events_folder(const std::filesystem::path& output);
[[nodiscard]] bool is_of_events(const std::filesystem::path& path);
/// The file with the times of all ranks.
[[nodiscard]] std::filesystem::path ranks_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& output, int rank);
[[nodiscard]] std::filesystem::path job_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path sample_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path weights_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output);
/// The file of a state that is saved during a run, after `step` steps: state-000100.safetensors.
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output, std::int64_t step);
/// The folder of the outputs of the function `iterate`: NAME.npy, and NAME-000100.npy after 100 steps.
[[nodiscard]] std::filesystem::path outputs_path(const std::filesystem::path& output);
/// The folder of the pictures of [iterate] pictures; and a picture in it, of the last step or of another: NAME.png,
/// NAME-000100.png. Each '/' of a name is written as '-'.
[[nodiscard]] std::filesystem::path pictures_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path picture_path(const std::filesystem::path& output, std::string name,
                                                 std::optional<std::int64_t> step, std::string_view extension = ".png");
/// The joined trace; and one rank's trace, in a folder of traces.
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output, int rank);

/// The folder of the ranks' traces.
[[nodiscard]] std::filesystem::path trace_folder(const std::filesystem::path& output);
/// The folder of the ranks' flight records.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& output);

/// The folder of the attempts of a run that were followed by another attempt: subfolders 1, 2 and so on. Each has the
/// attempt's summary.json, log and flight records.
[[nodiscard]] std::filesystem::path attempts_path(const std::filesystem::path& output);

/// The folder of an earlier run whose results are kept until a later run in the same folder has finished.
[[nodiscard]] std::filesystem::path earlier_path(const std::filesystem::path& output);
/// Whether a run is kept there.
[[nodiscard]] bool has_earlier_run(const std::filesystem::path& output);

/// The file that a run locks, in addition to the folder.
[[nodiscard]] std::filesystem::path lock_path(const std::filesystem::path& output);

/// Files of an earlier run that are kept when a run starts from the earlier run's state.
struct Kept {
  std::filesystem::path file;  ///< the state from which the new run starts
  std::int64_t step = -1;      ///< saved states up to this step are kept
  bool metrics =
      false;  ///< lines of metrics.jsonl and ranks.jsonl up to this step are kept, too, because the run continues
  bool results = false;  ///< a run that has saved results is kept in earlier_path(); see keeps_earlier()
};

/// Whether the run in the folder is to be kept in earlier_path(): it has saved results, and has finished or finds no
/// run kept there.
[[nodiscard]] bool keeps_earlier(const std::filesystem::path& output, const Kept& kept);

/// Whether a run has ever held the folder.
[[nodiscard]] bool is_of_a_run(const std::filesystem::path& output);

/// A file in the folder, other than `except`, that has the name of a run's result (job.ini, weights.safetensors,
/// state-000100.safetensors, …) although no run has ever held the folder; "" if there is none.
[[nodiscard]] std::filesystem::path foreign_result(const std::filesystem::path& output,
                                                   const std::filesystem::path& except = {});

/// Bytes on disk of the earlier run's files that a new run removes before it writes.
[[nodiscard]] std::uint64_t bytes_to_remove(const std::filesystem::path& output, const Kept& kept = {});

/// Whether a run that writes to `output` can replace or remove `file`. It can if the file is there, directly or through
/// links, and has the name of a file that runs write.
[[nodiscard]] bool is_written_by_runs(const std::filesystem::path& file, const std::filesystem::path& output);

/// The states that were saved during a run, by their steps; and the files of the output `name`, by theirs.
[[nodiscard]] std::map<std::int64_t, std::filesystem::path> states_under_way(const std::filesystem::path& output);
[[nodiscard]] std::map<std::int64_t, std::filesystem::path> outputs_under_way(const std::filesystem::path& output,
                                                                              std::string_view name);

/// A file of the folder of pictures. `step`: nothing for a picture of the last step, and for an animation.
struct SavedPicture {
  std::string field;
  std::optional<std::int64_t> step;
  std::filesystem::path path;
};

/// The pictures of a run, by their paths.
[[nodiscard]] std::vector<SavedPicture> pictures_of(const std::filesystem::path& output);

/// Whether the file has the name of a final or intermediate state.
[[nodiscard]] bool has_name_of_state(const std::filesystem::path& file);

/// Whether a file is one rank's, such as rank-3.json.
[[nodiscard]] bool is_of_rank(const std::filesystem::path& path, std::string_view extension);

/// Whether a name is that of a run's temporary file, such as .summary.json.tmp.
[[nodiscard]] bool is_unfinished(std::string_view name);

/// The states, outputs and pictures that were saved during the earlier run, except for those that `kept` keeps.
/// `failed`: gets why a folder could not be listed.
[[nodiscard]] std::vector<std::filesystem::path> old_states(const std::filesystem::path& output, const Kept& kept,
                                                            std::error_code& failed);

}  // namespace shardrun::metrics
