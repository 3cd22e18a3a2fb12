#include "core/checkpoint/saved_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/checkpoint/resume.h"
#include "core/data/finite.h"
#include "core/data/npy.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"

namespace shardrun::checkpoint {
namespace {

constexpr const char* step_key = "shardrun.step";

/// The limit for the number of steps of all runs together, and for the samples in all these steps. Sums of such numbers
/// stay far below 2^63.
constexpr std::int64_t most_steps = 1'000'000'000'000'000;

[[noreturn]] void refuse(const job::Job& job, const std::string& what) {
  throw Error(ErrorCode::job, fmt::format("{}: [iterate] from: {}", job.where("iterate", "from"), what));
}

std::string type_text(const TensorInfo& info) {
  return fmt::format("{} [{}]", to_string(info.dtype), fmt::join(info.shape, ", "));
}

/// Reads elements of a tensor as float32, from index `first` on.
using ReadFloats = std::function<void(std::int64_t first, std::span<float> to)>;

/// Reads a rank's part of a tensor, block by block. `whole`: the shape of the tensor.
void read_part(const std::vector<std::int64_t>& whole, const ReadFloats& read, const mesh::Box& box,
               const device::TensorView& part) {
  constexpr std::int64_t most_elements = 16384;
  const std::int64_t elements = std::accumulate(whole.begin(), whole.end(), std::int64_t{1}, std::multiplies<>());
  std::vector<float> block;
  std::int64_t first = 0;  // index in the tensor of the block's first element
  for (std::int64_t local = 0; local < box.elements(); ++local) {
    const std::int64_t at = box.index_in_whole(whole, local);
    if (at >= first + std::ssize(block)) {
      first = at;
      block.resize(static_cast<std::size_t>(std::min(most_elements, elements - at)));
      read(first, block);
    }
    double value = block[static_cast<std::size_t>(at - first)];
    device::write_elements(part, local, {&value, 1});
  }
}

/// Returns `saved`, the number of saved steps. Throws Error{job} if its sum with the job's steps exceeds the limit.
std::int64_t check_steps(const job::Job& job, std::int64_t saved) {
  const std::int64_t most = most_steps / (job::has_data(job) ? job.data.batch : 1);
  if (job.iterate.steps > most - saved) {
    const std::string after = saved == 0 ? "" : fmt::format(", after the {} of [iterate] from", saved);
    throw Error(ErrorCode::job, fmt::format("{}: [iterate] steps = {}{}: found more than {} steps in all; choose fewer",
                                            job.where("iterate", "steps"), job.iterate.steps, after, most));
  }
  return saved;
}

bool is_array(const std::filesystem::path& file) { return file.extension() == ".npy"; }

/// The open files of [iterate] from: one safetensors file or several arrays.
class FirstState {
 public:
  explicit FirstState(const job::Job& job) : job_(job) {
    try {
      for (const std::filesystem::path& path : saved_state_files(job)) {
        if (is_array(path)) {
          arrays_.emplace_back(files::SteadyFile(path));
        } else {
          file_.emplace(path);
        }
      }
    } catch (const Error& error) {
      refuse(job, error.message() +
                      "; name a state.safetensors that a run has written, the run's folder, a .npy file, "
                      "or a folder with one for each field, NAME.npy");
    }
  }

  /// The number of steps done in the state. Throws Error{job} as check_steps() does, or if the number is invalid.
  [[nodiscard]] std::int64_t steps() const {
    try {
      return check_steps(job_, file_ ? step_of_state(*file_) : 0);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::data) {
        throw;
      }
      refuse(job_, error.message());
    }
  }

  /// Compares names, shapes and types in the files with the model's fields. Throws Error{job} if they differ.
  [[nodiscard]] SavedState check(const graph::Graph& graph) const {
    std::vector<std::string> names;
    for (const graph::State& state : graph.states) {
      if (state.kind == graph::StateKind::field) {
        names.push_back(state.name);
      }
    }
    const SavedState saved = {.fingerprint = fingerprint(), .steps = steps()};
    if (is_one_array() && names.size() != 1) {
      refuse(job_, fmt::format("'{}' is one array, and model {} iterates {}: name a folder with {}.npy",
                               arrays_.front().path().native(), job_.model.name, fmt::join(names, ", "),
                               fmt::join(names, ".npy, ")));
    }
    for (const std::string& name : names) {
      check_field(name, graph.states[graph.find_state(name)].type.shape);
    }
    for (const std::string& name : names_of_tensors()) {
      if (!is_one_array() && std::ranges::find(names, name) == names.end()) {
        refuse(job_, fmt::format("'{}' has {} '{}', which model {} does not have{}; it has {}", place(), what(), name,
                                 job_.model.name, did_you_mean(name, names), fmt::join(names, ", ")));
      }
    }
    return saved;
  }

  /// Reads elements of a field from index `first` on. REQUIRES: check() has not thrown.
  void read(const std::string& field, std::int64_t first, std::span<float> to) const {
    if (file_) {
      file_->read(file_->at(field), static_cast<std::size_t>(first) * sizeof(float), std::as_writable_bytes(to));
    } else {
      array_of(field)->read(first, to);
    }
  }

  void require_unchanged() const {
    if (file_) {
      file_->require_unchanged();
    }
    for (const data::NpyArray& array : arrays_) {
      array.file().require_unchanged();
    }
  }

  /// Throws Error{data} if a number of an array is NaN, infinite, or too large for float32. A file that a run wrote is
  /// not checked, because a run continues from any values.
  void require_finite(int threads) const {
    for (const data::NpyArray& array : arrays_) {
      try {
        data::require_finite(array, threads);
        array.file().require_unchanged();
      } catch (const Error& error) {
        throw Error(error.code(),
                    fmt::format("{}: [iterate] from: {}", job_.where("iterate", "from"), error.message()));
      }
    }
  }

 private:
  /// Whether the setting names a single array file instead of a folder. That file's name need not be a field's name.
  [[nodiscard]] bool is_one_array() const { return !arrays_.empty() && arrays_.front().path() == job_.iterate.from; }
  [[nodiscard]] const char* what() const { return file_ ? "a tensor" : "an array"; }
  [[nodiscard]] std::string place() const { return (file_ ? file_->path() : job_.iterate.from).native(); }

  [[nodiscard]] std::vector<std::string> names_of_tensors() const {
    std::vector<std::string> names;
    for (const data::NpyArray& array : arrays_) {
      names.push_back(array.path().stem());
    }
    for (const Tensor& tensor : file_ ? file_->tensors() : std::vector<Tensor>()) {
      names.push_back(tensor.info.name);
    }
    return names;
  }

  [[nodiscard]] const data::NpyArray* array_of(const std::string& field) const {
    const auto found = std::ranges::find_if(
        arrays_, [&](const data::NpyArray& array) { return is_one_array() || array.path().stem() == field; });
    return found == arrays_.end() ? nullptr : &*found;
  }

  void check_field(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const Tensor* const tensor = file_ ? file_->find(name) : nullptr;
    const data::NpyArray* const array = array_of(name);
    if (tensor == nullptr && array == nullptr) {
      refuse(job_, fmt::format("'{}' has no {} '{}', which model {} iterates", place(), file_ ? "tensor" : "array",
                               file_ ? name : name + ".npy", job_.model.name));
    }
    const TensorInfo expected = {name, DType::f32, shape};
    if (tensor != nullptr && tensor->info != expected) {
      refuse(job_, fmt::format("'{}': tensor '{}' should be {}, as [model] says, found {}", place(), name,
                               type_text(expected), type_text(tensor->info)));
    }
    if (array != nullptr && array->shape() != shape) {
      refuse(job_, fmt::format("'{}' should be [{}], as [model] says of '{}', found {} [{}]", array->path().native(),
                               fmt::join(shape, ", "), name, data::to_string(array->type()),
                               fmt::join(array->shape(), ", ")));
    }
  }

  [[nodiscard]] std::string fingerprint() const {
    std::string text = file_ ? file_->fingerprint() : "";
    for (const data::NpyArray& array : arrays_) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", array.path().filename().native(),
                          array.file().fingerprint());
    }
    return text;
  }

  const job::Job& job_;
  std::optional<SafetensorsFile> file_;
  std::vector<data::NpyArray> arrays_;
};

bool has_first_state(const job::Job& job) { return job.task == job::Task::iterate && !job.iterate.from.empty(); }

}  // namespace

std::vector<std::filesystem::path> saved_state_files(const job::Job& job) {
  const std::filesystem::path& from = job.iterate.from;
  std::error_code none;
  if (from.empty() || !std::filesystem::is_directory(from, none)) {
    return from.empty() ? std::vector<std::filesystem::path>() : std::vector{from};
  }
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::exists(metrics::state_path(from), none)) {
    std::error_code failed;
    for (auto entry = std::filesystem::directory_iterator(from, failed);
         !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      if (is_array(entry->path())) {
        files.push_back(entry->path());
      }
    }
    std::ranges::sort(files);
  }
  return files.empty() ? std::vector{metrics::state_path(from)} : files;
}

void check_saved_numbers(const job::Job& job, int threads) {
  if (has_first_state(job)) {
    FirstState(job).require_finite(threads);
  }
}

Metadata describe_state(std::int64_t steps) { return {{"format", "pt"}, {step_key, std::to_string(steps)}}; }

std::int64_t step_of_state(const SafetensorsFile& file) {
  const auto found = file.metadata().find(step_key);
  if (found == file.metadata().end()) {
    return 0;
  }
  const std::string& text = found->second;
  std::int64_t step = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (failed != std::errc() || end != text.data() + text.size() || step < 0 || step > most_steps) {
    throw Error(ErrorCode::data, fmt::format("'{}' says that it is of step '{}', which is no number of steps (0 to {})",
                                             file.path().string(), text, most_steps));
  }
  return step;
}

std::int64_t first_step(const job::Job& job) {
  if (job.task != job::Task::iterate) {
    return 0;
  }
  return job.iterate.from.empty() ? check_steps(job, 0) : FirstState(job).steps();
}

std::int64_t last_step(const job::Job& job) {
  return job.task == job::Task::train ? job.train.steps : first_step(job) + job.iterate.steps;
}

SavedState check_saved_state(const job::Job& job, const graph::Graph& graph) {
  if (!has_first_state(job)) {
    return {.fingerprint = "", .steps = first_step(job)};
  }
  return FirstState(job).check(graph);
}

SavedState initialize_states(const job::Job& job, const graph::Graph& graph, runtime::Executor& executor) {
  runtime::initialize(graph, job.seed, executor);
  if (!has_first_state(job)) {
    return {};
  }
  const FirstState first(job);
  const SavedState saved = first.check(graph);  // checked again, because the files could have changed since
  for (const graph::StateId id : graph.states.ids()) {
    if (graph.states[id].kind == graph::StateKind::field) {
      device::HostTensor part(executor.queue(), executor.state(id), device::Access::write);
      const graph::State& state = graph.states[id];
      read_part(
          state.type.shape, [&](std::int64_t from, std::span<float> to) { first.read(state.name, from, to); },
          executor.part(id), part.view());
      part.store();
    }
  }
  first.require_unchanged();
  return saved;
}

std::filesystem::path result_path(const job::Job& job) {
  return job.task == job::Task::train ? metrics::weights_path(job.output) : metrics::state_path(job.output);
}

metrics::Kept kept_of(const job::Job& job, const OpenCheckpoint* resumed) {
  std::error_code none;
  if (resumed != nullptr && std::filesystem::equivalent(resumed->path().parent_path(), checkpoint_folder(job), none)) {
    return {.file = {}, .step = resumed->manifest().step, .metrics = true};
  }
  if (!has_first_state(job)) {
    return {};
  }
  const std::filesystem::path file = saved_state_files(job).front();
  const auto lies_here = [&](const std::filesystem::path& path) {
    return std::filesystem::equivalent(path.parent_path(), job.output, none);
  };
  const bool is_of_this_folder = lies_here(file) || lies_here(std::filesystem::canonical(file, none));
  return is_of_this_folder ? metrics::Kept{.file = file, .step = first_step(job)} : metrics::Kept{};
}

}  // namespace shardrun::checkpoint
