#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/checkpoint/safetensors.h"
#include "core/files/json.h"

namespace shardrun::checkpoint {
namespace {

constexpr std::size_t length_bytes = 8;

/// A tensor as the header describes it. Offsets start at the first byte after the header.
struct Entry {
  TensorInfo info;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class Reader {
 public:
  /// `head`: a copy of the beginning of `file`, with its length field and (for read()) its header. Only `head` is read.
  Reader(std::span<const std::byte> file, std::span<const std::byte> head, std::string_view source)
      : file_(file), head_(head), source_(source) {}

  /// The bytes of the length field and header together. Throws Error{data} if they exceed the limit or the file's size.
  [[nodiscard]] std::size_t head_bytes() const { return length_bytes + static_cast<std::size_t>(header_bytes()); }

  SafetensorsContents read() {
    const std::string_view header = find_header();
    const boost::json::value parsed = files::parse_json_strictly(header, fmt::format("the header of '{}'", source_));
    SafetensorsContents contents;
    std::vector<Entry> entries;
    for (const auto& [key, value] : parsed.get_object()) {
      if (key == "__metadata__") {
        contents.metadata = metadata(value);
      } else {
        entries.push_back(entry(key, value));
      }
    }
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    const std::span<const std::byte> data = file_.subspan(length_bytes + header.size());
    require_no_gap(entries, data.size());
    for (Entry& found : entries) {
      contents.tensors.push_back({std::move(found.info), data.subspan(found.begin, found.end - found.begin)});
    }
    return contents;
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}' as safetensors: {}", source_, fault));
  }

  [[noreturn]] void refuse_tensor(std::string_view name, const std::string& fault) const {
    refuse(fmt::format("tensor '{}': {}", shown(name), fault));
  }

  std::uint64_t header_bytes() const {
    if (file_.size() < length_bytes) {
      refuse(fmt::format("it has {} bytes; the length of the header alone takes {}", file_.size(), length_bytes));
    }
    std::uint64_t length = 0;
    for (std::size_t i = length_bytes; i-- > 0;) {
      length = (length << 8U) | std::to_integer<std::uint64_t>(head_[i]);
    }
    if (length > max_header_bytes) {
      refuse(fmt::format("its header would have {} bytes; at most {} are allowed, so it is some other kind of file",
                         length, max_header_bytes));
    }
    if (length > file_.size() - length_bytes) {
      refuse(fmt::format("its header of {} bytes reaches past the end: {} are there; it is cut short", length,
                         file_.size() - length_bytes));
    }
    return length;
  }

  std::string_view find_header() const {
    const std::uint64_t length = header_bytes();
    const std::string_view header(reinterpret_cast<const char*>(head_.data()) + length_bytes, length);
    if (!header.starts_with('{')) {
      refuse("its header does not start with '{'");
    }
    if (const auto bad = first_invalid_utf8(header)) {
      refuse(fmt::format("its header is not valid UTF-8 at byte {}", *bad));
    }
    return header;
  }

  Metadata metadata(const boost::json::value& value) const {
    if (!value.is_object()) {
      refuse("__metadata__ is not an object");
    }
    Metadata pairs;
    for (const auto& [key, text] : value.get_object()) {
      if (!text.is_string()) {
        refuse(fmt::format("__metadata__ \"{}\" is not a string", shown(key)));
      }
      pairs.emplace(key, text.get_string());
    }
    return pairs;
  }

  Entry entry(std::string_view name, const boost::json::value& value) const {
    if (!value.is_object()) {
      refuse_tensor(name, "its entry is not an object");
    }
    const boost::json::object& fields = value.get_object();
    Entry entry;
    entry.info.name = name;
    entry.info.dtype = dtype(name, field(name, fields, "dtype"));
    entry.info.shape = counts(name, "shape", field(name, fields, "shape"));
    const std::vector<std::int64_t> offsets = counts(name, "data_offsets", field(name, fields, "data_offsets"));
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      refuse_tensor(name, fmt::format("its data_offsets are [{}]: expected a begin and an end not before it",
                                      shown(fmt::format("{}", fmt::join(offsets, ", ")))));
    }
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    const std::string shape = shown(fmt::format("{}", fmt::join(entry.info.shape, ", ")));
    const std::optional<std::uint64_t> bytes = tensor_bytes(entry.info);
    if (!bytes) {
      refuse_tensor(name, fmt::format("the size of its shape [{}] overflows", shape));
    }
    if (*bytes != entry.end - entry.begin) {
      refuse_tensor(name, fmt::format("shape [{}] of {} takes {} bytes, its data_offsets give it {}", shape,
                                      to_string(entry.info.dtype), *bytes, entry.end - entry.begin));
    }
    return entry;
  }

  const boost::json::value& field(std::string_view name, const boost::json::object& fields,
                                  std::string_view key) const {
    const boost::json::value* found = fields.if_contains({key.data(), key.size()});
    if (found == nullptr) {
      refuse_tensor(name, fmt::format("it has no \"{}\"", key));
    }
    return *found;
  }

  DType dtype(std::string_view name, const boost::json::value& value) const {
    if (!value.is_string()) {
      refuse_tensor(name, "its dtype is not a string");
    }
    const std::string_view text = value.get_string();
    const std::optional<DType> known = dtype_of(text);
    if (!known) {
      refuse_tensor(name, fmt::format("its dtype \"{}\" is unknown", shown(text)));
    }
    return *known;
  }

  std::vector<std::int64_t> counts(std::string_view name, std::string_view key, const boost::json::value& value) const {
    if (!value.is_array()) {
      refuse_tensor(name, fmt::format("its {} is not an array", key));
    }
    std::vector<std::int64_t> numbers;
    for (const boost::json::value& number : value.get_array()) {
      if (!number.is_int64() || number.get_int64() < 0) {
        refuse_tensor(name, fmt::format("its {} holds {}: expected integers from 0 to 2^63 - 1", key,
                                        shown(boost::json::serialize(number))));
      }
      numbers.push_back(number.get_int64());
    }
    return numbers;
  }

  void require_no_gap(const std::vector<Entry>& entries, std::size_t data_bytes) const {
    std::uint64_t end = 0;
    std::string_view before = "the header";
    for (const Entry& entry : entries) {
      if (entry.begin != end) {
        refuse_tensor(entry.info.name,
                      fmt::format("it begins at byte {}, but {} ends at {}: tensors lie without gap or overlap",
                                  entry.begin, shown(before), end));
      }
      end = entry.end;
      before = entry.info.name;
    }
    if (end != data_bytes) {
      refuse(fmt::format("its tensors end at byte {} of the data, the file has {}: {}", end, data_bytes,
                         end > data_bytes ? "it is cut short" : "something was appended"));
    }
  }

  std::span<const std::byte> file_;
  std::span<const std::byte> head_;
  std::string_view source_;
};

}  // namespace

SafetensorsContents parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  return Reader(file, file, source).read();
}

SafetensorsContents parse_safetensors(const files::SteadyFile& file, std::span<const std::byte> mapped) {
  std::vector<std::byte> head(std::min(length_bytes, mapped.size()));
  file.read(0, head);
  head.resize(Reader(mapped, head, file.path().native()).head_bytes());
  file.read(0, head);
  return Reader(mapped, head, file.path().native()).read();
}

void hash_tensor(files::SteadyFile& file, std::size_t offset, std::size_t bytes) {
  const bool is_large = bytes > files::SteadyFile::page;
  file.hash_also(is_large ? offset + bytes / 2 : offset, is_large ? 1 : bytes);
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path, std::size_t hashed)
    : file_(std::move(path), hashed),
      mapped_(file_.descriptor(), file_.size(), file_.path()),
      contents_(parse_safetensors(file_, mapped_.bytes())) {
  file_.require_unchanged();
  std::size_t header = file_.size();
  for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
    by_name_.emplace(contents_.tensors[i].info.name, i);
    const std::span<const std::byte> bytes = contents_.tensors[i].bytes;
    const auto offset = static_cast<std::size_t>(bytes.data() - mapped_.bytes().data());
    header = std::min(header, offset);
    hash_tensor(file_, offset, bytes.size());
  }
  file_.hash_also(0, header);
}

const Tensor* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &contents_.tensors[found->second];
}

void SafetensorsFile::read(const Tensor& tensor, std::size_t offset, std::span<std::byte> to) const {
  file_.read(static_cast<std::size_t>(tensor.bytes.data() - mapped_.bytes().data()) + offset, to);
}

const Tensor& SafetensorsFile::at(std::string_view name) const {
  const Tensor* found = find(name);
  if (found != nullptr) {
    return *found;
  }
  std::vector<std::string> names;
  for (const Tensor& tensor : contents_.tensors) {
    names.push_back(tensor.info.name);
  }
  throw Error(ErrorCode::data, fmt::format("'{}' has no tensor '{}'{}; it holds {} tensors", path().native(), name,
                                           did_you_mean(name, names), names.size()));
}

}  // namespace shardrun::checkpoint
