#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/checkpoint/safetensors.h"
#include "core/data/npy.h"

namespace shardrun::checkpoint {
namespace {

void require(bool holds, std::string_view name, std::string_view fault) {
  if (!holds) {
    throw Error(ErrorCode::internal, fmt::format("cannot lay out tensor '{}' in a safetensors file: {}", name, fault));
  }
}

void require_sound(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    require(tensor.name != "__metadata__", tensor.name, "the name is the format's own");
    require(!first_invalid_utf8(tensor.name), tensor.name, "its name is not UTF-8");
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  require(twice == names.end(), twice == names.end() ? "" : *twice, "there are two of that name");
  for (const auto& [key, value] : metadata) {
    require(!first_invalid_utf8(key) && !first_invalid_utf8(value), key, "the metadata is not UTF-8");
  }
}

/// Puts the length before a JSON header, and pads the header with spaces to a multiple of 8 bytes.
std::string framed(std::string json) {
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > max_header_bytes) {
    throw Error(ErrorCode::internal, fmt::format("a safetensors header of {} bytes: readers take at most {}",
                                                 json.size(), max_header_bytes));
  }
  const std::uint64_t length = json.size();
  std::string header(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    header[i] = static_cast<char>(static_cast<unsigned char>(length >> (8 * i)));
  }
  return header + json;
}

}  // namespace

TensorFileLayout lay_out(std::vector<TensorInfo> tensors, const Metadata& metadata) {
  require_sound(tensors, metadata);
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  boost::json::object json;
  if (!metadata.empty()) {
    boost::json::object pairs;
    for (const auto& [key, value] : metadata) {
      pairs[key] = value;
    }
    json["__metadata__"] = std::move(pairs);
  }
  TensorFileLayout layout;
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor);
    require(bytes.has_value(), tensor.name, "its size overflows");
    layout.offsets.push_back(end);
    require(!__builtin_add_overflow(end, *bytes, &end) && end <= INT64_MAX, tensor.name, "the file's size overflows");
    json[tensor.name] = boost::json::object{{"dtype", to_string(tensor.dtype)},
                                            {"shape", boost::json::array(tensor.shape.begin(), tensor.shape.end())},
                                            {"data_offsets", boost::json::array{layout.offsets.back(), end}}};
  }
  layout.header = framed(boost::json::serialize(json));
  for (std::uint64_t& offset : layout.offsets) {
    offset += layout.header.size();
  }
  layout.tensors = std::move(tensors);
  layout.file_bytes = layout.header.size() + end;
  return layout;
}

namespace {

/// The name of an element type in NumPy's format.
const char* descr_of(const TensorInfo& tensor) {
  switch (tensor.dtype) {
    case DType::boolean: return "|b1";
    case DType::u8: return "|u1";
    case DType::i8: return "|i1";
    case DType::i16: return "<i2";
    case DType::u16: return "<u2";
    case DType::f16: return "<f2";
    case DType::i32: return "<i4";
    case DType::u32: return "<u4";
    case DType::f32: return "<f4";
    case DType::f64: return "<f8";
    case DType::i64: return "<i8";
    case DType::u64: return "<u8";
    case DType::f8_e5m2:
    case DType::f8_e4m3:
    case DType::bf16: break;
  }
  require(false, tensor.name, "NumPy has no such element type");
  return "";
}

}  // namespace

TensorFileLayout lay_out_npy(const TensorInfo& tensor) {
  const std::optional<std::uint64_t> bytes = tensor_bytes(tensor);
  require(bytes && *bytes <= INT64_MAX / 2, tensor.name, "its size overflows");
  TensorFileLayout layout;
  layout.header = data::npy_header(descr_of(tensor), tensor.shape);
  layout.tensors = {tensor};
  layout.offsets = {layout.header.size()};
  layout.file_bytes = layout.header.size() + *bytes;
  return layout;
}

TensorRanges::TensorRanges(const TensorFileLayout& layout) {
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const std::uint64_t bytes = *tensor_bytes(layout.tensors[i]);
    ranges_.emplace(layout.tensors[i].name, TensorRange{layout.offsets[i], bytes, bytes});
  }
}

std::uint64_t TensorRanges::take(std::string_view name, std::uint64_t offset, std::uint64_t bytes,
                                 std::string_view file) {
  const auto found = ranges_.find(name);
  if (found == ranges_.end()) {
    throw Error(ErrorCode::internal, fmt::format("'{}' has no tensor '{}'", file, name));
  }
  TensorRange& range = found->second;
  if (offset > range.bytes || bytes > range.bytes - offset || bytes > range.missing) {
    throw Error(ErrorCode::internal, fmt::format("{} bytes at byte {} do not lie within tensor '{}', which has {}",
                                                 bytes, offset, name, range.bytes));
  }
  range.missing -= bytes;
  return range.offset + offset;
}

void TensorRanges::require_whole(std::string_view file) const {
  for (const auto& [name, range] : ranges_) {
    if (range.missing != 0) {
      throw Error(ErrorCode::internal, fmt::format("cannot finish '{}': tensor '{}' lacks {} of its {} bytes", file,
                                                   name, range.missing, range.bytes));
    }
  }
}

TensorFileWriter::TensorFileWriter(std::filesystem::path path, const TensorFileLayout& layout)
    : file_(std::move(path)), ranges_(layout) {
  file_.reserve(layout.file_bytes);
  file_.write(std::as_bytes(std::span(layout.header)));
}

void TensorFileWriter::write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(ranges_.take(name, offset, bytes.size(), file_.path().native()), bytes);
}

void TensorFileWriter::leave(std::string_view name, std::uint64_t offset, std::uint64_t bytes) {
  (void)ranges_.take(name, offset, bytes, file_.path().native());
}

void TensorFileWriter::commit() {
  ranges_.require_whole(file_.path().native());
  file_.commit();
}

TensorFilePieces::TensorFilePieces(std::filesystem::path path, const TensorFileLayout& layout)
    : name_(path.native()), file_(std::move(path), layout.file_bytes), ranges_(layout) {}

void TensorFilePieces::write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(ranges_.take(name, offset, bytes.size(), name_), bytes);
}

void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors, const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const Tensor& tensor : tensors) {
    infos.push_back(tensor.info);
  }
  TensorFileWriter writer(path, lay_out(std::move(infos), metadata));
  for (const Tensor& tensor : tensors) {
    writer.write(tensor.info.name, 0, tensor.bytes);
  }
  writer.commit();
}

}  // namespace shardrun::checkpoint
