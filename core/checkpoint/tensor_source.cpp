#include "core/checkpoint/tensor_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <shardrun/sdk/transport/half.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/weights.h"
#include "core/device/elements.h"
#include "core/files/json.h"
#include "core/files/mapped_file.h"

namespace shardrun::checkpoint {
namespace {

constexpr std::size_t most_index_bytes = std::size_t{64} << 20U;

/// A box with `count` consecutive elements of a tensor, from index `first` on.
mesh::Box consecutive(const std::vector<std::int64_t>& shape, std::int64_t first, std::int64_t count) {
  return {.origin = std::vector<std::int64_t>(shape.size(), 0),
          .shape = shape,
          .run = mesh::Interval{first, first + count}};
}

/// The state's name, "w", if `name` is "w" or that of a varying state's copy on the first rank, such as "w@data=0".
/// Nothing for the copies of other ranks, such as "w@data=1".
std::optional<std::string> name_of_first_copy(const std::string& name) {
  const std::size_t at = name.find('@');
  std::string zeros;
  for (std::size_t axis = at; axis != std::string::npos; axis = name.find('@', axis + 1)) {
    zeros += name.substr(axis, name.find('=', axis) - axis) + "=0";
  }
  return at == std::string::npos || name.substr(at) == zeros ? std::optional(name.substr(0, at)) : std::nullopt;
}

TensorSource source_of(const OpenCheckpoint& checkpoint, std::vector<std::size_t> numbers,
                       std::vector<TensorInfo> tensors) {
  TensorSource source;
  source.path = checkpoint.path();
  source.files = {checkpoint.path() / manifest_name};
  for (const StoredFile& file : checkpoint.manifest().files) {
    source.files.push_back(checkpoint.path() / file.name);
  }
  source.metadata = describe_model(checkpoint.manifest().run.model, checkpoint.manifest().run.tokenizer);
  source.tensors = std::move(tensors);
  source.has_slow_reads = true;  // each read searches all pieces of the tensor
  source.read = [&checkpoint, numbers = std::move(numbers)](std::size_t tensor, std::int64_t first,
                                                            std::span<std::byte> to) {
    const StoredTensor& stored = checkpoint.manifest().tensors[numbers[tensor]];
    const auto count = static_cast<std::int64_t>(to.size() / element_bytes(stored.dtype));
    checkpoint.read(stored, consecutive(stored.shape, first, count), to);
  };
  return source;
}

/// Throws Error{data} if a finite value became infinite by the conversion. `made`: the converted values.
void require_held(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<const double> values,
                  std::span<const double> made, DType dtype) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && !std::isfinite(made[i])) {
      const TensorInfo& info = source.tensors[tensor];
      throw Error(
          ErrorCode::data,
          fmt::format("'{}': tensor {} has {} at {}, which {} cannot hold: it would be infinite", source.path.native(),
                      info.name, values[i], place_of(info, first + static_cast<std::int64_t>(i)), to_string(dtype)));
    }
  }
}

[[noreturn]] void refuse_index(const std::filesystem::path& index, const std::string& fault) {
  throw Error(ErrorCode::data, fmt::format("cannot read '{}': {}", index.native(), fault));
}

/// The files that an index names, each with the names of its tensors.
std::map<std::string, std::vector<std::string>> files_of_index(const std::filesystem::path& index) {
  const boost::json::value json =
      files::parse_json_strictly(files::read_text_file(index, most_index_bytes), index.native());
  const boost::json::object* const fields = json.if_object();
  const boost::json::value* const map = fields == nullptr ? nullptr : fields->if_contains("weight_map");
  if (map == nullptr || !map->is_object()) {
    refuse_index(index, "it has no object 'weight_map'");
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->get_object()) {
    const std::string name = file.is_string() ? std::string(file.get_string()) : "";
    if (name.empty() || std::filesystem::path(name).filename() != name || name == "." || name == "..") {
      refuse_index(index, fmt::format("tensor '{}' should be in a file of the same folder", shown(tensor)));
    }
    files[name].emplace_back(tensor);
  }
  return files;
}

}  // namespace

TensorSource::TensorSource(const SafetensorsFile& file)
    : path(file.path()), files{file.path()}, metadata(file.metadata()) {
  for (const Tensor& tensor : file.tensors()) {
    tensors.push_back(tensor.info);
  }
  read = [&file](std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
    const Tensor& of = file.tensors()[tensor];
    file.read(of, static_cast<std::size_t>(first) * element_bytes(of.info.dtype), to);
    file.require_unchanged();
  };
}

std::size_t TensorSource::index_of(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &TensorInfo::name);
  if (found != tensors.end()) {
    return static_cast<std::size_t>(found - tensors.begin());
  }
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors) {
    names.push_back(tensor.name);
  }
  throw Error(ErrorCode::data, fmt::format("'{}' has no tensor '{}'{}; it holds {} tensors", path.native(), shown(name),
                                           did_you_mean(name, names), names.size()));
}

TensorSource weights_of(const OpenCheckpoint& checkpoint) {
  std::vector<std::size_t> numbers;
  std::vector<TensorInfo> tensors;
  const std::vector<StoredTensor>& all = checkpoint.manifest().tensors;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_weight = all[i].role == TensorRole::parameter || all[i].role == TensorRole::field;
    const std::optional<std::string> name = is_weight ? name_of_first_copy(all[i].name) : std::nullopt;
    if (name) {
      numbers.push_back(i);
      tensors.push_back({*name, all[i].dtype, all[i].shape});
    }
  }
  return source_of(checkpoint, std::move(numbers), std::move(tensors));
}

TensorSource states_of(const OpenCheckpoint& checkpoint) {
  std::vector<TensorInfo> tensors;
  for (const StoredTensor& stored : checkpoint.manifest().tensors) {
    tensors.push_back({stored.name, stored.dtype, stored.shape});
  }
  std::vector<std::size_t> numbers(tensors.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return source_of(checkpoint, std::move(numbers), std::move(tensors));
}

TensorSource array_source(const data::NpyArray& array, std::string name) {
  TensorSource source;
  source.path = array.path();
  source.files = {array.path()};
  source.tensors = {{std::move(name), DType::f32, array.shape()}};
  source.read = [&array](std::size_t, std::int64_t first, std::span<std::byte> to) {
    std::vector<float> values(to.size() / sizeof(float));
    array.read(first, values);
    array.file().require_unchanged();
    std::ranges::copy(std::as_bytes(std::span(values)), to.begin());
  };
  return source;
}

namespace {

/// The file to which a path or link leads. In a hub cache, files are links to other folders.
std::filesystem::path linked(const std::filesystem::path& path) {
  std::error_code failed;
  const std::filesystem::path file = std::filesystem::canonical(path, failed);
  return failed ? path : file;
}

/// Whether a path exists; a broken link counts, too.
bool is_there(const std::filesystem::path& path) {
  std::error_code failed;
  return std::filesystem::exists(std::filesystem::symlink_status(path, failed));
}

/// Opens a file that the index in its folder names. Throws Error{data} if the file is missing or damaged.
std::unique_ptr<SafetensorsFile> open_indexed(const std::filesystem::path& file) {
  std::error_code failed;
  if (!std::filesystem::exists(file, failed)) {
    refuse_index(file.parent_path() / index_name,
                 fmt::format("it asks for the file '{}', which is not there: download it, too",
                             shown(file.filename().native())));
  }
  return std::make_unique<SafetensorsFile>(linked(file), hashed_of_weights);
}

/// Throws Error{data} if a folder without model.safetensors has no index either.
void require_safetensors(const std::filesystem::path& folder) {
  if (is_there(folder / index_name)) {
    return;
  }
  const bool has_pickles = is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json");
  throw Error(ErrorCode::data,
              fmt::format("'{}' has neither {} nor {}{}", folder.native(), one_file_name, index_name,
                          has_pickles ? ": pytorch_model.bin is a pickle, which runs code when it is read: convert it "
                                        "with save_pretrained of a current transformers"
                                      : ""));
}

}  // namespace

TensorFiles::TensorFiles(const std::filesystem::path& path) {
  const bool is_folder = std::filesystem::is_directory(path);
  if (!is_folder || is_there(path / one_file_name)) {
    files_.push_back(
        std::make_unique<SafetensorsFile>(is_folder ? linked(path / one_file_name) : path, hashed_of_weights));
    source_ = TensorSource(*files_.back());
    return;
  }
  require_safetensors(path);
  source_.path = path;
  source_.files = {path / index_name};
  std::vector<std::pair<std::size_t, std::size_t>> places;
  std::vector<TensorSource> sources;
  for (const auto& [name, tensors] : files_of_index(path / index_name)) {
    files_.push_back(open_indexed(path / name));
    sources.emplace_back(*files_.back());
    source_.files.push_back(path / name);
    for (const std::string& tensor : tensors) {
      try {
        places.emplace_back(sources.size() - 1, sources.back().index_of(tensor));
      } catch (const Error& error) {
        refuse_index(path / index_name, error.message());
      }
      source_.tensors.push_back(sources.back().tensors[places.back().second]);
    }
  }
  if (!sources.empty()) {
    source_.metadata = sources.front().metadata;
  }
  source_.read = [sources = std::move(sources), places = std::move(places)](std::size_t tensor, std::int64_t first,
                                                                            std::span<std::byte> to) {
    sources[places[tensor].first].read(places[tensor].second, first, to);
  };
}

std::string TensorFiles::fingerprint() const {
  std::string all;
  for (const std::unique_ptr<SafetensorsFile>& file : files_) {
    all += (all.empty() ? "" : " ") + file->fingerprint();
  }
  return all;
}

std::string place_of(const TensorInfo& info, std::int64_t element) {
  std::vector<std::int64_t> index(info.shape.size());
  for (std::size_t d = index.size(); d-- > 0; element /= info.shape[d]) {
    index[d] = element % info.shape[d];
  }
  return fmt::format("[{}] (counted from 0)", fmt::join(index, ", "));
}

bool is_real(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

void require_finite(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<const float> values) {
  const auto found = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (found == values.end()) {
    return;
  }
  const TensorInfo& info = source.tensors[tensor];
  throw Error(ErrorCode::data,
              fmt::format("'{}': tensor {} has {} at {}, and what a job loads must be finite: the run that made it "
                          "went wrong, or the file was changed",
                          source.path.native(), info.name,
                          std::isnan(*found) ? "NaN"
                          : *found > 0       ? "Inf"
                                             : "-Inf",
                          place_of(info, first + (found - values.begin()))));
}

namespace {

/// Reads a tensor's elements, converted to another type.
class Converter {
 public:
  Converter(const TensorSource& source, std::size_t tensor, DType dtype)
      : source_(source), tensor_(tensor), stored_(source.tensors[tensor].dtype), dtype_(dtype) {}

  /// Returns `count` elements from index `first` on, as bytes of the new type. They stay valid until the next call.
  /// Throws Error{data} if a finite number would become infinite.
  std::span<const std::byte> read(std::int64_t first, std::size_t count) {
    bytes_.resize(count * element_bytes(stored_));
    source_.read(tensor_, first, bytes_);
    if (stored_ == dtype_) {
      return bytes_;
    }
    values_.resize(count);
    made_.resize(count);
    converted_.resize(count * element_bytes(dtype_));
    device::read_elements(loaded_type(stored_), bytes_, values_);
    device::write_elements(loaded_type(dtype_), values_, converted_);
    device::read_elements(loaded_type(dtype_), converted_, made_);
    require_held(source_, tensor_, first, values_, made_, dtype_);
    return converted_;
  }

 private:
  const TensorSource& source_;
  std::size_t tensor_;
  DType stored_;
  DType dtype_;
  std::vector<std::byte> bytes_;
  std::vector<double> values_;
  std::vector<double> made_;
  std::vector<std::byte> converted_;
};

}  // namespace

void stream_as(const TensorSource& source, std::size_t tensor, DType dtype,
               const std::function<void(std::span<const std::byte>)>& take) {
  const TensorInfo& info = source.tensors[tensor];
  const auto elements = static_cast<std::int64_t>(*tensor_bytes(info) / element_bytes(info.dtype));
  Converter converter(source, tensor, dtype);
  for (std::int64_t first = 0; first < elements; first += elements_at_once) {
    stop_point();
    take(converter.read(first, static_cast<std::size_t>(std::min(elements_at_once, elements - first))));
  }
}

namespace {

/// Converts 16-bit elements, which were read into the end of `values`, to float32 in place. Copies a block at a time,
/// so that the compiler can vectorize the conversion.
template <typename Element>
void widen(std::span<float> values) {
  std::array<Element, 256> some;
  const std::byte* const stored = std::as_bytes(values).last(values.size() * sizeof(Element)).data();
  for (std::size_t first = 0; first < values.size(); first += some.size()) {
    const std::size_t count = std::min(some.size(), values.size() - first);
    std::memcpy(some.data(), stored + first * sizeof(Element), count * sizeof(Element));
    for (std::size_t i = 0; i < count; ++i) {
      values[first + i] = sdk::widen(some[i]);
    }
  }
}

/// Whether all numbers are finite. In a NaN or infinity, all bits of the exponent are set.
bool are_finite(std::span<const float> values) {
  constexpr std::uint32_t exponent = 0x7F800000;
  std::uint32_t found = 0;
  for (const float value : values) {
    found |= (std::bit_cast<std::uint32_t>(value) & exponent) == exponent ? 1U : 0U;
  }
  return found == 0;
}

}  // namespace

void read_any_as_float(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<float> to) {
  const DType stored = source.tensors[tensor].dtype;
  if (stored == DType::f64) {  // its numbers can be too large for float32
    Converter converter(source, tensor, DType::f32);
    std::ranges::copy(converter.read(first, to.size()), std::as_writable_bytes(to).begin());
  } else {
    source.read(tensor, first, std::as_writable_bytes(to).last(to.size() * element_bytes(stored)));
  }
  if (stored == DType::bf16) {
    widen<sdk::Bfloat>(to);
  } else if (stored == DType::f16) {
    widen<sdk::Half>(to);
  }
}

void read_as_float(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<float> to) {
  read_any_as_float(source, tensor, first, to);
  if (!are_finite(to)) {
    require_finite(source, tensor, first, to);
  }
}

}  // namespace shardrun::checkpoint
