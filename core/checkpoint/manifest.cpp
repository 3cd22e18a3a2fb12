#include "core/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/base/error.h"
#include "core/files/json.h"
#include "core/mesh/rows.h"

namespace shardrun::checkpoint {
namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

/// The version of the manifest's format. It grows with each change that earlier programs cannot read.
constexpr std::int64_t format_number = 1;

constexpr std::array<std::string_view, 4> role_names = {"parameter", "optimizer", "field", "hook"};

array json_of(const std::vector<std::int64_t>& numbers) { return array(numbers.begin(), numbers.end()); }

object json_of(const Piece& piece) {
  object json{{"file", piece.file},
              {"offset", piece.offset},
              {"origin", json_of(piece.box.origin)},
              {"extent", json_of(piece.box.shape)}};
  if (piece.box.run) {
    json["run"] = {piece.box.run->begin, piece.box.run->end};
  }
  return json;
}

object json_of(const StoredTensor& tensor) {
  array pieces;
  for (const Piece& piece : tensor.pieces) {
    pieces.push_back(json_of(piece));
  }
  return {{"name", tensor.name},
          {"role", to_string(tensor.role)},
          {"dtype", to_string(tensor.dtype)},
          {"shape", json_of(tensor.shape)},
          {"pieces", std::move(pieces)}};
}

/// A number as JSON; null if it is absent, NaN or infinite, because JSON has no such numbers.
value json_of(const std::optional<double>& number) {
  return number && std::isfinite(*number) ? value(*number) : value(nullptr);
}

object json_of(const RunIdentity& run) {
  return {{"task", run.task},
          {"model", run.model},
          {"optimizer", run.optimizer},
          {"tokenizer", run.tokenizer},
          {"data", array(run.data.begin(), run.data.end())},
          {"split", run.split},
          {"seed", run.seed}};
}

/// Reads the fields of a manifest. Error messages name places such as tensors[3].pieces[0].offset.
class Fields {
 public:
  explicit Fields(std::string_view source) : source_(source) {}

  [[noreturn]] void refuse(std::string_view place, std::string_view fault) const {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': {}: {}", source_, place, fault));
  }

  /// The field `key` of an object. Throws Error{data} if it is missing.
  const value& at(const value& json, std::string_view key, const std::string& place) const {
    const object* const fields = json.if_object();
    const value* const found = fields == nullptr ? nullptr : fields->if_contains({key.data(), key.size()});
    if (found == nullptr) {
      refuse(place.empty() ? "the file" : place, fmt::format("has no field '{}'", key));
    }
    return *found;
  }

  std::string text(const value& json, std::string_view key, const std::string& place) const {
    const boost::json::string* const found = at(json, key, place).if_string();
    if (found == nullptr) {
      refuse(join(place, key), "should be text");
    }
    return {found->data(), found->size()};
  }

  std::int64_t count(const value& json, std::string_view key, const std::string& place) const {
    return count(at(json, key, place), join(place, key));
  }

  std::int64_t count(const value& json, const std::string& place) const {
    const std::int64_t* const found = json.if_int64();
    if (found == nullptr || *found < 0) {
      refuse(place, "should be a whole number from 0 to 2^63 - 1");
    }
    return *found;
  }

  std::vector<std::int64_t> counts(const value& json, std::string_view key, const std::string& place) const {
    std::vector<std::int64_t> numbers;
    each(json, key, place,
         [&](const value& number, const std::string& at_number) { numbers.push_back(count(number, at_number)); });
    return numbers;
  }

  /// Calls `read` with each element of an array and its place.
  template <typename Read>
  void each(const value& json, std::string_view key, const std::string& place, const Read& read) const {
    const array* const elements = at(json, key, place).if_array();
    if (elements == nullptr) {
      refuse(join(place, key), "should be a list");
    }
    for (std::size_t i = 0; i < elements->size(); ++i) {
      read((*elements)[i], fmt::format("{}[{}]", join(place, key), i));
    }
  }

  static std::string join(std::string_view place, std::string_view key) {
    return place.empty() ? std::string(key) : fmt::format("{}.{}", place, key);
  }

  /// A finite number; nothing if the field is null.
  [[nodiscard]] std::optional<double> real(const value& json, std::string_view key) const {
    const value& found = at(json, key, "");
    if (!found.is_null() && !found.is_number()) {
      refuse(key, "should be a number or null");
    }
    if (found.is_double() && !std::isfinite(found.get_double())) {  // 1e999 is valid JSON, but infinite
      refuse(key, fmt::format("should be a finite number or null, and is {}", found.get_double()));
    }
    return found.is_null() ? std::nullopt : std::optional(found.to_number<double>());
  }

  [[nodiscard]] files::Hash hash(const value& json, std::string_view key, const std::string& place) const {
    const std::optional<files::Hash> hash = files::parse_hash(text(json, key, place));
    if (!hash) {
      refuse(join(place, key), "should be 32 digits of a hash");
    }
    return *hash;
  }

 private:
  std::string_view source_;
};

/// Whether the name is that of a rank's file, such as rank-3.safetensors, and has no folder.
bool is_rank_file(std::string_view name) {
  constexpr std::string_view prefix = "rank-";
  std::int64_t rank = -1;
  if (name.starts_with(prefix)) {
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), rank);
  }
  return rank >= 0 && name == rank_file_name(rank);
}

StoredFile file_of(const Fields& fields, const value& json, const std::string& place) {
  StoredFile file{.name = fields.text(json, "name", place),
                  .bytes = static_cast<std::uint64_t>(fields.count(json, "bytes", place)),
                  .hash = fields.hash(json, "xxh3", place)};
  if (!is_rank_file(file.name)) {
    fields.refuse(place + ".name", fmt::format("'{}' is no name of a rank's file, as rank-0.safetensors", file.name));
  }
  return file;
}

Piece piece_of(const Fields& fields, const value& json, const std::string& place, const StoredTensor& tensor,
               const std::vector<StoredFile>& files) {
  Piece piece{.file = static_cast<std::size_t>(fields.count(json, "file", place)),
              .offset = static_cast<std::uint64_t>(fields.count(json, "offset", place)),
              .box = {.origin = fields.counts(json, "origin", place), .shape = fields.counts(json, "extent", place)}};
  if (json.as_object().contains("run")) {
    const std::vector<std::int64_t> run = fields.counts(json, "run", place);
    if (run.size() != 2) {
      fields.refuse(place + ".run", "should be two numbers");
    }
    piece.box.run = {run[0], run[1]};
  }
  if (!mesh::lies_within(piece.box, tensor.shape)) {
    fields.refuse(place, fmt::format("does not lie within tensor '{}'", tensor.name));
  }
  if (piece.file >= files.size()) {
    fields.refuse(place + ".file", fmt::format("there are {} files", files.size()));
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(piece.box.elements()) * element_bytes(tensor.dtype);
  if (const StoredFile& file = files[piece.file]; piece.offset > file.bytes || bytes > file.bytes - piece.offset) {
    fields.refuse(place, fmt::format("ends behind the end of {}", file.name));
  }
  return piece;
}

StoredTensor tensor_of(const Fields& fields, const value& json, const std::string& place,
                       const std::vector<StoredFile>& files) {
  StoredTensor tensor{.name = fields.text(json, "name", place), .shape = fields.counts(json, "shape", place)};
  const std::string role = fields.text(json, "role", place);
  const auto known_role = std::ranges::find(role_names, role);
  const std::optional<DType> dtype = dtype_of(fields.text(json, "dtype", place));
  if (known_role == role_names.end()) {
    fields.refuse(place + ".role", fmt::format("'{}' is none", role));
  }
  if (!dtype) {
    fields.refuse(place + ".dtype", "is no element type");
  }
  tensor.role = static_cast<TensorRole>(known_role - role_names.begin());
  tensor.dtype = *dtype;
  if (!tensor_bytes({tensor.name, tensor.dtype, tensor.shape})) {
    fields.refuse(place + ".shape", "the tensor has too many elements");
  }
  fields.each(json, "pieces", place, [&](const value& piece, const std::string& at) {
    tensor.pieces.push_back(piece_of(fields, piece, at, tensor, files));
  });
  return tensor;
}

RunIdentity run_of(const Fields& fields, const value& json) {
  RunIdentity run{.task = fields.text(json, "task", "run"),
                  .model = fields.text(json, "model", "run"),
                  .optimizer = fields.text(json, "optimizer", "run"),
                  .tokenizer = fields.text(json, "tokenizer", "run"),
                  .split = fields.text(json, "split", "run")};
  fields.each(json, "data", "run", [&](const value& fingerprint, const std::string& at) {
    if (!fingerprint.is_string()) {
      fields.refuse(at, "should be text");
    }
    run.data.emplace_back(fingerprint.as_string());
  });
  const value& seed = fields.at(json, "seed", "run");
  if (!seed.is_uint64() && !(seed.is_int64() && seed.as_int64() >= 0)) {
    fields.refuse("run.seed", "should be a whole number");
  }
  run.seed = seed.to_number<std::uint64_t>();
  return run;
}

/// The first field of the JSON. Its hash covers all text after the field.
std::string hash_field(const files::Hash& hash) { return fmt::format("{{\"xxh3\":\"{}\",", to_string(hash)); }

void require_hash(const Fields& fields, std::string_view text) {
  const std::size_t field = hash_field({}).size();
  if (text.size() < field || !text.starts_with(hash_field(files::hash_of(text.substr(field))))) {
    fields.refuse("its hash", "is not that of its bytes: the file was changed or is incomplete");
  }
}

/// Throws Error{data} if two names are equal. `named`: the files or the tensors of a manifest.
template <typename Named>
void require_different_names(const Fields& fields, std::string_view place, const std::vector<Named>& named) {
  std::vector<std::string_view> names;
  for (const Named& each : named) {
    names.push_back(each.name);
  }
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    fields.refuse(place, fmt::format("there are two of the name '{}'", *twice));
  }
}

}  // namespace

const char* to_string(TensorRole role) noexcept { return role_names[static_cast<std::size_t>(role)].data(); }

std::string to_json(const Manifest& manifest) {
  array files;
  for (const StoredFile& file : manifest.files) {
    files.push_back(object{{"name", file.name}, {"bytes", file.bytes}, {"xxh3", to_string(file.hash)}});
  }
  array tensors;
  for (const StoredTensor& tensor : manifest.tensors) {
    tensors.push_back(json_of(tensor));
  }
  const object json{{"format", format_number},
                    {"step", manifest.step},
                    {"samples", manifest.samples},
                    {"base", manifest.base},
                    {"evaluated", manifest.evaluated},
                    {"loss", json_of(manifest.loss)},
                    {"val_loss", json_of(manifest.val_loss)},
                    {"run", json_of(manifest.run)},
                    {"strategy", manifest.strategy},
                    {"mesh", manifest.mesh},
                    {"precision", manifest.precision},
                    {"job", manifest.job},
                    {"files", std::move(files)},
                    {"tensors", std::move(tensors)}};
  const std::string rest = boost::json::serialize(json).substr(1) + "\n";
  return hash_field(files::hash_of(rest)) + rest;
}

Manifest parse_manifest(std::string_view text, std::string_view source) {
  const Fields fields(source);
  require_hash(fields, text);
  const value json = files::parse_json_strictly(text, source);
  if (const std::int64_t format = fields.count(json, "format", ""); format != format_number) {
    fields.refuse("format", fmt::format("is {}, and this version of shardrun reads {}", format, format_number));
  }
  Manifest manifest{.step = fields.count(json, "step", ""),
                    .samples = fields.count(json, "samples", ""),
                    .base = fields.count(json, "base", ""),
                    .loss = fields.real(json, "loss"),
                    .val_loss = fields.real(json, "val_loss"),
                    .run = run_of(fields, fields.at(json, "run", "")),
                    .strategy = fields.text(json, "strategy", ""),
                    .mesh = fields.text(json, "mesh", ""),
                    .precision = fields.text(json, "precision", ""),
                    .job = fields.text(json, "job", "")};
  constexpr std::int64_t most = std::int64_t{1} << 62U;
  if (manifest.step > most || manifest.samples > most || manifest.base > manifest.step) {
    fields.refuse("step, samples and base", "are numbers that no run reaches");
  }
  const value& evaluated = fields.at(json, "evaluated", "");
  if (!evaluated.is_bool()) {
    fields.refuse("evaluated", "should be true or false");
  }
  manifest.evaluated = evaluated.as_bool();
  fields.each(json, "files", "",
              [&](const value& file, const std::string& at) { manifest.files.push_back(file_of(fields, file, at)); });
  fields.each(json, "tensors", "", [&](const value& tensor, const std::string& at) {
    manifest.tensors.push_back(tensor_of(fields, tensor, at, manifest.files));
  });
  require_different_names(fields, "files", manifest.files);
  require_different_names(fields, "tensors", manifest.tensors);
  return manifest;
}

std::uint64_t file_bytes(const Manifest& manifest) noexcept {
  std::uint64_t bytes = 0;
  for (const StoredFile& file : manifest.files) {
    bytes += file.bytes;
  }
  return bytes;
}

std::string rank_file_name(std::int64_t rank) { return fmt::format("rank-{}.safetensors", rank); }

}  // namespace shardrun::checkpoint
