#include "core/forecast/disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <system_error>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/saved_state.h"
#include "core/checkpoint/weights.h"
#include "core/data/dataset.h"
#include "core/files/folder.h"
#include "core/metrics/run_files.h"
#include "core/report/run_pictures.h"
#include "core/runtime/flight_record.h"

namespace shardrun::forecast {
namespace {

// Bytes of parts of the files that runs write, as observed.
constexpr std::uint64_t line_of_training = 360;
constexpr std::uint64_t line_of_iterating = 110;
constexpr std::uint64_t row_of_training = 220;  // of metrics.csv
constexpr std::uint64_t row_of_iterating = 70;
constexpr std::uint64_t event_of_training = 340;  // for TensorBoard
constexpr std::uint64_t event_of_iterating = 150;
constexpr std::uint64_t event_of_trace = 300;
constexpr std::uint64_t events_of_engine = 200;  // estimated events of an engine in a step
constexpr std::uint64_t token_of_sample = 4;

std::uint64_t traced_bytes(const job::Job& job, const compile::Compiled& compiled, std::int64_t steps) {
  std::uint64_t instructions = compiled.engine == nullptr ? 0 : events_of_engine;
  for (const std::size_t program : compile::programs_of_step(compiled, compiled.programs)) {
    instructions += compiled.programs.programs[program].instructions.size();
  }
  const auto traced = static_cast<std::uint64_t>(std::min(job.trace_steps, steps));
  return 2 * static_cast<std::uint64_t>(job.ranks) * traced * instructions * event_of_trace;
}

/// Bytes of all kept checkpoints, plus the new one that is written before an older one is removed.
std::uint64_t bytes_of_checkpoints(const job::Job& job, const compile::Compiled& compiled, std::int64_t steps) {
  const job::CheckpointSettings& settings = job.checkpoints;
  if (!settings.used) {
    return 0;
  }
  std::uint64_t bytes = 0;
  const checkpoint::Contents contents = compile::contents_of(job, compiled);
  for (const checkpoint::SavedTensor& saved : contents.tensors) {
    bytes += *checkpoint::tensor_bytes({saved.tensor.name, saved.tensor.dtype, saved.tensor.shape});
  }
  const std::int64_t saves = 1 + (settings.every > 0 ? steps / settings.every : 0);
  const std::int64_t kept = settings.keep_every > 0 ? steps / settings.keep_every : 0;
  const std::int64_t most = settings.keep == 0 ? saves : settings.keep + 1 + kept;
  return bytes * static_cast<std::uint64_t>(settings.every > 0 ? std::min(saves, most) : most);
}

/// Bytes of the checkpoints that are in the folder already.
std::uint64_t bytes_of_older(const std::filesystem::path& folder) {
  std::uint64_t bytes = 0;
  for (const checkpoint::Listed& listed : checkpoint::list_checkpoints(folder)) {
    std::error_code failed;
    for (auto entry = std::filesystem::directory_iterator(listed.path, failed);
         !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      std::error_code none;
      const std::uintmax_t size = entry->file_size(none);
      bytes += none ? 0 : size;
    }
  }
  return bytes;
}

[[noreturn]] void refuse(const job::Job& job, const std::string& what, const std::string& remedy) {
  throw Error(ErrorCode::job, fmt::format("{}: {}: {}", job.file, what, remedy));
}

std::string exact(std::uint64_t bytes) { return fmt::format("{} ({} bytes)", human_bytes(bytes), bytes); }

void require_file_size(const job::Job& job, const DiskUse& use, std::uint64_t arena_bytes, std::uint64_t limit) {
  const auto require = [&](const std::string& file, std::uint64_t bytes) {
    if (bytes > limit) {
      refuse(
          job,
          fmt::format("{} takes {}, and the limit of a file's size (ulimit -f) is {} bytes", file, exact(bytes), limit),
          "raise that limit (ulimit -f unlimited), or make the model smaller");
    }
  };
  require(use.result, use.result_bytes);
  require("the arena of a rank, which is a file in memory,", arena_bytes);
}

}  // namespace

std::uint64_t DiskUse::result_bytes_in_all() const noexcept {
  std::uint64_t bytes = 0;
  const auto files = static_cast<std::uint64_t>(under_way) + 1;
  return __builtin_mul_overflow(result_bytes + output_bytes, files, &bytes) ? UINT64_MAX : bytes;
}

std::uint64_t DiskUse::total() const noexcept {
  std::uint64_t sum = result_bytes_in_all();
  const std::uint64_t checkpoints = checkpoint_folder.empty() ? checkpoint_bytes : 0;
  for (const std::uint64_t bytes :
       {picture_bytes, metrics_bytes, record_bytes, trace_bytes, sample_bytes, checkpoints}) {
    sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
  }
  return sum;
}

DiskUse disk_use(const job::Job& job, const compile::Compiled& compiled) {
  if (job.task == job::Task::infer) {
    return {};  // the size of the predictions is not known before the run
  }
  const bool trains = job.task == job::Task::train;
  const std::int64_t steps = job::steps_of(job);
  const data::Tokenizer* const tokenizer = compiled.dataset == nullptr ? nullptr : compiled.dataset->tokenizer();
  const graph::StateKind kind = trains ? graph::StateKind::parameter : graph::StateKind::field;
  DiskUse use;
  use.result = checkpoint::result_path(job).filename().string();
  if (compiled.engine != nullptr) {
    use.result_bytes = compile::engine_file({}, *compiled.engine, trains ? 0 : steps).layout.file_bytes;
  } else {
    use.result_bytes =
        checkpoint::state_file({}, compiled.graph, kind,
                               trains ? checkpoint::describe_model(compiled.model, compiled.settings, tokenizer)
                                      : checkpoint::describe_state(steps))
            .layout.file_bytes;
  }
  for (const checkpoint::StateFile& output : checkpoint::output_files({}, compiled.graph)) {
    use.output_bytes += output.layout.file_bytes;
  }
  use.under_way = !trains && job.iterate.save_every > 0 ? steps / job.iterate.save_every : 0;
  use.picture_bytes =
      trains ? 0
             : report::most_picture_bytes(
                   job, compiled.engine != nullptr ? compile::whole_states(*compiled.engine) : compiled.graph,
                   use.under_way + 1);
  use.metrics_bytes = static_cast<std::uint64_t>(steps) *
                      ((trains ? line_of_training : line_of_iterating) +
                       (job.metrics.csv ? (trains ? row_of_training : row_of_iterating) : 0) +
                       (job.metrics.tensorboard ? (trains ? event_of_training : event_of_iterating) : 0));
  use.has_other_metrics = job.metrics.csv || job.metrics.tensorboard;
  use.record_bytes = job.ranks > 1 ? static_cast<std::uint64_t>(job.ranks) * sizeof(runtime::FlightFile) : 0;
  use.trace_bytes = job.trace == job::Trace::steps ? traced_bytes(job, compiled, steps) : 0;
  use.sample_bytes =
      trains && tokenizer != nullptr ? static_cast<std::uint64_t>(job.train.sample) * token_of_sample : 0;
  use.checkpoint_bytes = bytes_of_checkpoints(job, compiled, steps);
  use.checkpoint_folder = job.checkpoints.folder.string();
  return use;
}

std::string to_string(const DiskUse& use) {
  std::string text = fmt::format("{} {}", use.result, human_bytes(use.result_bytes));
  if (use.under_way > 0) {
    text += fmt::format(", {} under way {}", counted(use.under_way, "state"),
                        human_bytes(use.result_bytes_in_all() - use.result_bytes - use.output_bytes));
  }
  const auto add = [&](const char* what, std::uint64_t bytes) {
    text += bytes == 0 ? "" : fmt::format(", {} {}", what, human_bytes(bytes));
  };
  add("outputs", use.output_bytes);
  add("pictures at most", use.picture_bytes);
  add(use.has_other_metrics ? "metrics" : "metrics.jsonl", use.metrics_bytes);
  add("flight records", use.record_bytes);
  add("traces", use.trace_bytes);
  add("sample.txt", use.sample_bytes);
  const bool apart = !use.checkpoint_folder.empty() && use.checkpoint_bytes > 0;
  add("checkpoints", apart ? 0 : use.checkpoint_bytes);
  text += ", in all " + human_bytes(use.total());
  return apart ? text + fmt::format("; in {}: checkpoints {}", files::human_path(use.checkpoint_folder),
                                    human_bytes(use.checkpoint_bytes))
               : text;
}

DiskLimits disk_limits(const job::Job& job, bool replaces) {
  DiskLimits limits{.room = files::disk_room(job.output), .file_size = files::file_size_limit()};
  if (limits.room) {
    metrics::Kept kept = checkpoint::kept_of(job);
    kept.results = !replaces;
    limits.room->bytes += metrics::bytes_to_remove(job.output, kept);
  }
  if (job.checkpoints.used) {
    const std::filesystem::path folder = checkpoint::checkpoint_folder(job);
    limits.older_checkpoints = bytes_of_older(folder);
    const std::optional<files::DiskRoom> room = files::disk_room(folder);
    if (room && limits.room && room->disk != limits.room->disk) {
      limits.checkpoint_room = room;
    }
  }
  return limits;
}

std::vector<std::string> require_disk(const job::Job& job, const DiskUse& use, std::uint64_t arena_bytes,
                                      const DiskLimits& limits) {
  if (limits.file_size) {
    require_file_size(job, use, arena_bytes, *limits.file_size);
  }
  if (!limits.room) {
    return {};
  }
  const std::string left = fmt::format("{} has {} left", limits.room->of, human_bytes(limits.room->bytes));
  if (const std::uint64_t needed = use.result_bytes_in_all(); needed > limits.room->bytes) {
    const std::string results = use.under_way == 0 ? use.result
                                                   : fmt::format("{} and {} under way ([iterate] save_every)",
                                                                 use.result, counted(use.under_way, "state"));
    refuse(job,
           fmt::format("{} would take {} in {}, and {}", results, exact(needed), files::human_path(job.output), left),
           "free some space there, or choose another folder ([job] output); results that were there before stay until "
           "the new ones are whole");
  }
  // Existing checkpoints are part of checkpoint_bytes, but their space is already taken.
  const std::uint64_t checkpoints = use.checkpoint_bytes - std::min(limits.older_checkpoints, use.checkpoint_bytes);
  const std::uint64_t others = use.total() - (use.checkpoint_folder.empty() ? use.checkpoint_bytes : 0);
  const std::uint64_t still = others + (limits.checkpoint_room ? 0 : checkpoints);
  std::vector<std::string> warnings;
  if (still > limits.room->bytes) {
    warnings.push_back(fmt::format("the run may write {} in all, and {}: {} once that is used up", human_bytes(still),
                                   left, others <= limits.room->bytes ? "checkpoints cannot be written" : "it fails"));
  }
  if (limits.checkpoint_room && checkpoints > limits.checkpoint_room->bytes) {
    warnings.push_back(
        fmt::format("checkpoints may take {} in {}, and {} has {} left: they cannot be written once "
                    "that is used up",
                    human_bytes(checkpoints), files::human_path(use.checkpoint_folder), limits.checkpoint_room->of,
                    human_bytes(limits.checkpoint_room->bytes)));
  }
  return warnings;
}

std::vector<std::string> require_checkpoint_folder(const job::Job& job) {
  const std::filesystem::path folder = checkpoint::checkpoint_folder(job);
  std::error_code none;
  const char* const key = job.checkpoints.folder.empty() ? "output" : "folder";
  const char* const section = job.checkpoints.folder.empty() ? "job" : "checkpoint";
  if (std::filesystem::exists(folder, none) && !std::filesystem::is_directory(folder, none)) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [{}] {}: '{}' is to be the folder of checkpoints, and is a file: move it, or choose "
                            "another folder",
                            job.where(section, key), section, key, files::shown(folder).native()));
  }
  const std::string why = files::why_unwritable(folder);
  if (why.empty()) {
    return {};
  }
  if (!std::filesystem::exists(folder, none)) {
    throw Error(ErrorCode::job, fmt::format("{}: [{}] {}: the folder of checkpoints cannot be made: {}: choose another",
                                            job.where(section, key), section, key, why));
  }
  if (job.checkpoints.on_failure == job::SaveFailure::stop) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [{}] {}: no checkpoint can be written to {}, and [checkpoint] on_failure "
                            "is stop: choose another folder",
                            job.where(section, key), section, key, why));
  }
  return {fmt::format("warning: as it is now, no checkpoint can be written to {}; the run tries all the same", why)};
}

std::vector<std::string> require_disk(const job::Job& job, const compile::Compiled& compiled, bool replaces) {
  std::vector<std::string> warnings =
      require_disk(job, disk_use(job, compiled), compiled.programs.memory.peak, disk_limits(job, replaces));
  if (job.checkpoints.used) {
    std::ranges::move(require_checkpoint_folder(job), std::back_inserter(warnings));
  }
  return warnings;
}

}  // namespace shardrun::forecast
