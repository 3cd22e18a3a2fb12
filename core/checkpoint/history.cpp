#include "core/checkpoint/history.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/saved_state.h"
#include "core/device/elements.h"
#include "core/files/folder.h"
#include "core/files/mapped_file.h"
#include "core/metrics/run_files.h"
#include "core/metrics/summary.h"

namespace shardrun::checkpoint {
namespace {

/// Opens a tensor of a source. `owner`: the object from which the source reads; the result keeps it alive.
template <typename Owner>
OpenTensor tensor_in(const std::shared_ptr<Owner>& owner, const TensorSource& source, std::string_view name) {
  const std::size_t tensor = source.index_of(name);
  return {.info = source.tensors[tensor],
          .path = source.path,
          .files = source.files,
          .read = [owner, tensor, read = source.read](std::int64_t first, std::span<std::byte> to) {
            read(tensor, first, to);
          }};
}

OpenTensor tensor_of_file(const std::filesystem::path& path, std::string_view name) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  return tensor_in(file, *file, name);
}

OpenTensor tensor_of_array(const std::filesystem::path& path, const std::string& name) {
  const auto array = std::make_shared<const data::NpyArray>(files::SteadyFile(path));
  return tensor_in(array, array_source(*array, name), name);
}

OpenTensor tensor_of_checkpoint(const std::filesystem::path& path, std::string_view name) {
  const auto checkpoint = std::make_shared<const OpenCheckpoint>(path);
  const StoredTensor* const stored = checkpoint->find(name);
  if (stored != nullptr) {
    std::set<std::size_t> files;
    for (const Piece& piece : stored->pieces) {
      files.insert(piece.file);
    }
    for (const std::size_t file : files) {
      checkpoint->check_file(file);
    }
  }
  return tensor_in(checkpoint, states_of(*checkpoint), name);
}

/// The step in a state file's metadata. Returns unknown_step for weights and for files of other programs.
std::int64_t step_in(const SafetensorsFile& file) {
  const Metadata of_states = describe_state(0);
  const bool is_state =
      std::ranges::all_of(of_states, [&](const auto& entry) { return file.metadata().contains(entry.first); });
  return is_state ? step_of_state(file) : History::unknown_step;
}

constexpr std::size_t most_summary_bytes = std::size_t{1} << 28U;

/// The number of steps after which a run saved its weights; unknown_step if its summary is unreadable or says "failed".
std::int64_t step_of_run(const std::filesystem::path& run) {
  try {
    const metrics::Summary summary =
        metrics::parse_summary(files::read_text_file(metrics::summary_path(run), most_summary_bytes));
    return summary.status == "failed" ? History::unknown_step : summary.first_step + summary.steps;
  } catch (const Error&) {
    return History::unknown_step;
  }
}

}  // namespace

History::History(const std::filesystem::path& given, std::string name, From from) : name_(std::move(name)) {
  std::error_code none;
  if (given.extension() == ".safetensors" && std::filesystem::is_regular_file(given, none)) {
    add_file(given, step_in(SafetensorsFile(given)));
  } else if (!std::filesystem::is_directory(given, none)) {
    throw Error(ErrorCode::usage, fmt::format("'{}' is no folder: name the folder of a run, of checkpoints, or of one "
                                              "checkpoint, or a safetensors file",
                                              files::human_path(given)));
  } else {
    add_states(given);
    add_outputs(given);
    if (from == From::all) {
      add_checkpoints(given);
      add_weights(given);
    }
  }
  if (saved_.size() > 1) {
    saved_.erase(unknown_step);
  }
  if (!saved_.empty()) {
    return;
  }
  std::ranges::sort(others_);
  others_.erase(std::unique(others_.begin(), others_.end()), others_.end());
  throw Error(ErrorCode::data,
              others_.empty()
                  ? fmt::format("'{}' has no saved states: no state.safetensors, no outputs, no weights.safetensors, "
                                "and no checkpoints",
                                files::human_path(given))
                  : fmt::format("nothing that '{}' has saved is called '{}'{}; it has {}", files::human_path(given),
                                name_, did_you_mean(name_, others_), fmt::join(others_, ", ")));
}

void History::add(Kind kind, const std::map<std::int64_t, std::filesystem::path>& saved) {
  for (const auto& [step, path] : saved) {
    saved_.try_emplace(step, Saved{kind, path});
  }
}

void History::add_states(const std::filesystem::path& run) {
  std::map<std::int64_t, std::filesystem::path> states = metrics::states_under_way(run);
  if (const std::filesystem::path last = metrics::state_path(run); std::filesystem::exists(last)) {
    states.try_emplace(step_of_state(SafetensorsFile(last)), last);
  }
  if (states.empty()) {
    return;
  }
  const SafetensorsFile newest(states.rbegin()->second);
  for (const Tensor& tensor : newest.tensors()) {
    others_.push_back(tensor.info.name);
  }
  if (newest.find(name_) != nullptr) {
    add(Kind::file, states);
  }
}

void History::add_file(const std::filesystem::path& path, std::int64_t step) {
  const SafetensorsFile file(path);
  for (const Tensor& tensor : file.tensors()) {
    others_.push_back(tensor.info.name);
  }
  if (file.find(name_) != nullptr) {
    add(Kind::file, {{step, path}});
  }
}

void History::add_weights(const std::filesystem::path& run) {
  if (const std::filesystem::path weights = metrics::weights_path(run); std::filesystem::exists(weights)) {
    add_file(weights, step_of_run(run));
  }
}

void History::add_outputs(const std::filesystem::path& run) {
  std::map<std::int64_t, std::filesystem::path> outputs = metrics::outputs_under_way(run, name_);
  const std::filesystem::path last = metrics::outputs_path(run) / (name_ + ".npy");
  if (std::filesystem::exists(last) && std::filesystem::exists(metrics::state_path(run))) {
    outputs.try_emplace(step_of_state(SafetensorsFile(metrics::state_path(run))), last);
  }
  add(Kind::output, outputs);
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(metrics::outputs_path(run), failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (entry->path().extension() == ".npy") {
      others_.push_back(entry->path().stem());
    }
  }
}

void History::add_checkpoints(const std::filesystem::path& given) {
  std::map<std::int64_t, std::filesystem::path> checkpoints;
  for (const Listed& listed : checkpoints_at(given)) {
    if (listed.has_manifest) {
      checkpoints.emplace(listed.step >= 0 ? listed.step : read_manifest(listed.path).step, listed.path);
    }
  }
  if (checkpoints.empty()) {
    return;
  }
  const Manifest newest = read_manifest(checkpoints.rbegin()->second);
  for (const StoredTensor& tensor : newest.tensors) {
    others_.push_back(tensor.name);
  }
  if (std::ranges::find(newest.tensors, name_, &StoredTensor::name) != newest.tensors.end()) {
    add(Kind::checkpoint, checkpoints);
  }
}

std::vector<std::int64_t> History::steps() const {
  std::vector<std::int64_t> steps;
  for (const auto& [step, saved] : saved_) {
    steps.push_back(step);
  }
  return steps;
}

OpenTensor History::open(std::int64_t step) const {
  const auto found = saved_.find(step);
  if (found == saved_.end()) {
    constexpr std::size_t most = 10;
    const std::vector<std::int64_t> all = steps();
    const std::string shown = all.size() <= most
                                  ? fmt::format("{}", fmt::join(all, ", "))
                                  : fmt::format("{} others, from {} to {}", all.size(), all.front(), all.back());
    throw Error(ErrorCode::usage, fmt::format("'{}' was not saved after step {}, but after {}", name_, step, shown));
  }
  switch (found->second.kind) {
    case Kind::file: return tensor_of_file(found->second.path, name_);
    case Kind::output: return tensor_of_array(found->second.path, name_);
    case Kind::checkpoint: return tensor_of_checkpoint(found->second.path, name_);
  }
  throw Error(ErrorCode::internal, "a state was saved in an unknown way");
}

void read_numbers(const OpenTensor& tensor, std::int64_t first, std::span<double> to) {
  std::vector<std::byte> bytes(to.size() * element_bytes(tensor.info.dtype));
  tensor.read(first, bytes);
  device::read_elements(loaded_type(tensor.info.dtype), bytes, to);
}

}  // namespace shardrun::checkpoint
