#include "core/files/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <set>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::files {
namespace {

constexpr std::string_view magic = "GGUF";
constexpr std::size_t most_head_bytes = std::size_t{512} << 20U;
constexpr std::uint64_t most_key_bytes = 65535;
constexpr std::uint64_t most_text_bytes = std::uint64_t{64} << 20U;
constexpr std::uint32_t most_dimensions = 4;
constexpr std::int64_t most_elements = std::int64_t{1} << 44U;
constexpr std::uint64_t most_alignment = std::uint64_t{1} << 20U;

constexpr std::array blocks = {
    GgufBlock{GgufType::f32, "F32", 1, 4},       GgufBlock{GgufType::f16, "F16", 1, 2},
    GgufBlock{GgufType::q4_0, "Q4_0", 32, 18},   GgufBlock{GgufType::q4_1, "Q4_1", 32, 20},
    GgufBlock{GgufType::q5_0, "Q5_0", 32, 22},   GgufBlock{GgufType::q5_1, "Q5_1", 32, 24},
    GgufBlock{GgufType::q8_0, "Q8_0", 32, 34},   GgufBlock{GgufType::q4_k, "Q4_K", 256, 144},
    GgufBlock{GgufType::q5_k, "Q5_K", 256, 176}, GgufBlock{GgufType::q6_k, "Q6_K", 256, 210},
    GgufBlock{GgufType::bf16, "BF16", 1, 2},
};

/// Types of the format that this program cannot read.
constexpr std::array<std::pair<std::uint32_t, const char*>, 22> other_types = {{
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"},
}};

std::string names_of_blocks() {
  std::vector<std::string_view> names;
  for (const GgufBlock& block : blocks) {
    names.emplace_back(block.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// The types of metadata values, with the format's numbers.
enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };
constexpr std::uint32_t value_types = 13;

std::string for_people(std::string_view text) { return printable(shardrun::shown(text)); }

/// The smallest number of bytes that a value of this type takes.
std::size_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::array: return 12;
    default: return 8;
  }
}

class GgufReader {
 public:
  GgufReader(std::size_t size, const std::function<void(std::size_t, std::span<std::byte>)>& read,
             std::string_view source)
      : size_(size), read_(read), source_(source) {}

  GgufContents parse() {
    check_version();
    const auto tensors = number<std::uint64_t>("the number of tensors");
    const auto values = number<std::uint64_t>("the number of values");
    require_room(tensors, 8 + 4 + 4 + 8, "tensors");
    require_room(values, 8 + 4 + 1, "values of metadata");
    GgufContents contents;
    for (std::uint64_t i = 0; i < values; ++i) {
      std::string key = text(fmt::format("the key of value {}", i), most_key_bytes);
      place_ = fmt::format("the value of '{}'", for_people(key));
      GgufValue found = value(type_of_value(), true);
      if (!contents.metadata.emplace(key, std::move(found)).second) {
        refuse(fmt::format("the key '{}' occurs twice", for_people(key)));
      }
    }
    const std::uint64_t alignment = alignment_of(contents);
    std::set<std::string, std::less<>> names;
    for (std::uint64_t i = 0; i < tensors; ++i) {
      contents.tensors.push_back(tensor(i, alignment));
      if (!names.insert(contents.tensors.back().name).second) {
        refuse(fmt::format("the tensor '{}' occurs twice", for_people(contents.tensors.back().name)));
      }
    }
    place_tensors(contents.tensors, alignment);
    return contents;
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}' as GGUF: {}", source_, fault));
  }

  void check_version() {
    std::array<char, 4> found{};
    if (size_ < 24) {
      refuse(fmt::format("it has {} bytes; the head alone takes 24", size_));
    }
    take(std::as_writable_bytes(std::span(found)));
    if (std::string_view(found.data(), found.size()) != magic) {
      refuse(fmt::format("it begins with '{}', expected 'GGUF'",
                         printable(escaped(std::string_view(found.data(), found.size())))));
    }
    const auto version = number<std::uint32_t>("the version");
    if (version != 0 && (version & 0xFFFFU) == 0) {
      refuse("it is big-endian: convert it to little-endian, as gguf-py's gguf_convert_endian does");
    }
    if (version != 2 && version != 3) {
      refuse(fmt::format("it is of version {}, expected 2 or 3: convert the model again", version));
    }
  }

  /// Throws Error{data} if `count` values of at least `least` bytes each cannot fit into the rest of the file.
  void require_room(std::uint64_t count, std::size_t least, std::string_view what) const {
    if (count > (size_ - at_) / least) {
      refuse(fmt::format("{} {} cannot be in the {} bytes that are left", count, what, size_ - at_));
    }
  }

  void take(std::span<std::byte> to) {
    while (!to.empty()) {
      if (at_ < begin_ || at_ >= begin_ + window_.size()) {
        constexpr std::size_t most = std::size_t{1} << 18U;
        begin_ = at_;
        window_.resize(std::min(most, size_ - at_));
        read_(begin_, window_);
      }
      const std::size_t count = std::min(to.size(), begin_ + window_.size() - at_);
      std::memcpy(to.data(), &window_[at_ - begin_], count);
      to = to.subspan(count);
      at_ += count;
    }
  }

  void require_bytes(std::uint64_t bytes, std::string_view what) const {
    if (bytes > size_ - at_) {
      refuse(fmt::format("{} would take {} bytes, and {} are left: it is cut short", what, bytes, size_ - at_));
    }
    if (at_ + bytes > most_head_bytes) {
      refuse(fmt::format("its head has more than {} bytes", most_head_bytes));
    }
  }

  template <typename T>
  T number(std::string_view what) {
    require_bytes(sizeof(T), what);
    std::array<std::byte, sizeof(T)> bytes{};
    take(bytes);
    if constexpr (std::is_floating_point_v<T>) {
      T made;
      std::memcpy(&made, bytes.data(), sizeof made);
      return made;
    } else {
      std::uint64_t made = 0;
      for (std::size_t i = sizeof(T); i-- > 0;) {
        made = made << 8U | std::to_integer<std::uint64_t>(bytes[i]);
      }
      return static_cast<T>(made);
    }
  }

  std::string text(std::string_view what, std::uint64_t most) {
    const auto length = number<std::uint64_t>(what);
    if (length > most) {
      refuse(fmt::format("{} would have {} bytes, expected at most {}", what, length, most));
    }
    require_bytes(length, what);
    std::string found(static_cast<std::size_t>(length), '\0');
    take(std::as_writable_bytes(std::span(found)));
    if (invalid_utf8(found) != std::string::npos) {
      refuse(fmt::format("{} is not UTF-8", what));
    }
    return found;
  }

  ValueType type_of_value() {
    const auto type = number<std::uint32_t>(place_);
    if (type >= value_types) {
      refuse(fmt::format("{} has the type {}, expected 0 to {}", place_, type, value_types - 1));
    }
    return static_cast<ValueType>(type);
  }

  std::int64_t unsigned_value() {
    const auto found = number<std::uint64_t>(place_);
    if (found > static_cast<std::uint64_t>(INT64_MAX)) {
      refuse(fmt::format("{} is {}, expected less than 2^63", place_, found));
    }
    return static_cast<std::int64_t>(found);
  }

  bool truth_value() {
    const auto found = number<std::uint8_t>(place_);
    if (found > 1) {
      refuse(fmt::format("{} is {}, expected 0 or 1", place_, found));
    }
    return found == 1;
  }

  GgufValue value(ValueType type, bool may_be_array) {
    switch (type) {
      case ValueType::u8: return std::int64_t{number<std::uint8_t>(place_)};
      case ValueType::i8: return std::int64_t{number<std::int8_t>(place_)};
      case ValueType::u16: return std::int64_t{number<std::uint16_t>(place_)};
      case ValueType::i16: return std::int64_t{number<std::int16_t>(place_)};
      case ValueType::u32: return std::int64_t{number<std::uint32_t>(place_)};
      case ValueType::i32: return std::int64_t{number<std::int32_t>(place_)};
      case ValueType::u64: return unsigned_value();
      case ValueType::i64: return number<std::int64_t>(place_);
      case ValueType::f32: return number<float>(place_);
      case ValueType::f64: return number<double>(place_);
      case ValueType::boolean: return truth_value();
      case ValueType::text: return text(place_, most_text_bytes);
      case ValueType::array: break;
    }
    if (!may_be_array) {
      refuse(fmt::format("{} is an array of arrays, which are not read", place_));
    }
    return array();
  }

  GgufValue array() {
    const ValueType type = type_of_value();
    const auto count = number<std::uint64_t>(place_);
    require_room(count, least_bytes(type), fmt::format("elements of {}", place_));
    if (type == ValueType::text) {
      return elements<std::string>(type, count);
    }
    return type == ValueType::f32 || type == ValueType::f64 ? elements<double>(type, count)
                                                            : elements<std::int64_t>(type, count);
  }

  template <typename Element>
  GgufValue elements(ValueType type, std::uint64_t count) {
    std::vector<Element> list;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::visit(
          [&](auto&& found) {
            using Found = std::decay_t<decltype(found)>;
            if constexpr (std::is_constructible_v<Element, Found> &&
                          std::is_arithmetic_v<Found> == std::is_arithmetic_v<Element>) {
              list.push_back(static_cast<Element>(std::forward<decltype(found)>(found)));
            }
          },
          value(type, false));
    }
    return list;
  }

  std::uint64_t alignment_of(const GgufContents& contents) const {
    constexpr std::int64_t usual = 32;
    const std::int64_t found = contents.integer("general.alignment", source_).value_or(usual);
    if (found < 1 || static_cast<std::uint64_t>(found) > most_alignment || (found & (found - 1)) != 0) {
      refuse(fmt::format("general.alignment is {}, expected a power of 2 up to {}", found, most_alignment));
    }
    return static_cast<std::uint64_t>(found);
  }

  /// Reads an entry of the table of tensors. Its offset is relative to the first block; place_tensors() changes that.
  GgufTensor tensor(std::uint64_t index, std::uint64_t alignment) {
    GgufTensor made;
    made.name = text(fmt::format("the name of tensor {}", index), most_key_bytes);
    const std::string what = fmt::format("the tensor '{}'", for_people(made.name));
    const auto dimensions = number<std::uint32_t>(what);
    if (dimensions > most_dimensions) {
      refuse(fmt::format("{} has {} dimensions, expected at most {}", what, dimensions, most_dimensions));
    }
    std::int64_t all = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto size = number<std::uint64_t>(what);
      if (size < 1 || size > static_cast<std::uint64_t>(most_elements / all)) {
        refuse(fmt::format("{}: its dimension {} is {}, expected at least 1 and at most {} elements in all", what, d,
                           size, most_elements));
      }
      all *= static_cast<std::int64_t>(size);
      made.shape.insert(made.shape.begin(), static_cast<std::int64_t>(size));
    }
    made.type = type_of_tensor(what);
    const GgufBlock& block = block_of(made.type);
    const std::size_t row = made.shape.empty() ? 1 : static_cast<std::size_t>(made.shape.back());
    if (row % block.elements != 0) {
      refuse(fmt::format("{} has rows of {} elements, expected a multiple of {}, the elements of a block of {}", what,
                         row, block.elements, block.name));
    }
    made.offset = number<std::uint64_t>(what);
    if (made.offset % alignment != 0) {
      refuse(
          fmt::format("{} begins at byte {} of the blocks, expected a multiple of {}", what, made.offset, alignment));
    }
    return made;
  }

  GgufType type_of_tensor(const std::string& what) {
    const auto type = number<std::uint32_t>(what);
    const auto* const known =
        std::ranges::find(blocks, type, [](const GgufBlock& block) { return static_cast<std::uint32_t>(block.type); });
    if (known != blocks.end()) {
      return known->type;
    }
    const auto* const other = std::ranges::find(other_types, type, [](const auto& named) { return named.first; });
    refuse(
        fmt::format("{} is of type {}; read are {}", what,
                    other != other_types.end() ? other->second : fmt::format("{}, which is none of the format", type),
                    names_of_blocks()));
  }

  /// Converts offsets to start at the beginning of the file. Throws Error{data} for tensors that exceed the
  /// file or overlap.
  void place_tensors(std::vector<GgufTensor>& tensors, std::uint64_t alignment) const {
    const std::uint64_t first = (at_ + alignment - 1) / alignment * alignment;
    const std::uint64_t room = size_ > first ? size_ - first : 0;
    std::vector<std::pair<std::uint64_t, const GgufTensor*>> ends;
    for (GgufTensor& tensor : tensors) {
      const GgufBlock& block = block_of(tensor.type);
      const std::uint64_t bytes = static_cast<std::uint64_t>(elements_of(tensor)) / block.elements * block.bytes;
      if (bytes > room || tensor.offset > room - bytes) {
        refuse(
            fmt::format("the tensor '{}' has {} bytes from byte {} of the blocks on, which have {} bytes: it is cut "
                        "short",
                        for_people(tensor.name), bytes, tensor.offset, room));
      }
      tensor.offset += first;
      ends.emplace_back(tensor.offset + bytes, &tensor);
    }
    std::ranges::sort(ends, {}, [](const auto& end) { return std::pair(end.second->offset, end.first); });
    for (std::size_t i = 1; i < ends.size(); ++i) {
      if (ends[i].second->offset < ends[i - 1].first) {
        refuse(fmt::format("the tensors '{}' and '{}' overlap", for_people(ends[i - 1].second->name),
                           for_people(ends[i].second->name)));
      }
    }
  }

  std::size_t size_;
  const std::function<void(std::size_t, std::span<std::byte>)>& read_;
  std::string_view source_;
  std::size_t at_ = 0;
  std::string place_;  ///< the place of the value being read, for messages
  std::size_t begin_ = 0;
  std::vector<std::byte> window_;  ///< the file's bytes from begin_ on
};

}  // namespace

const GgufBlock& block_of(GgufType type) noexcept { return *std::ranges::find(blocks, type, &GgufBlock::type); }

std::int64_t elements_of(const GgufTensor& tensor) noexcept {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    elements *= size;
  }
  return elements;
}

void GgufContents::refuse_type(std::string_view key, std::string_view source, std::string_view expected) {
  throw Error(ErrorCode::data, fmt::format("'{}': the value of '{}' should be {}", source, key, expected));
}

GgufContents parse_gguf(std::size_t size, const std::function<void(std::size_t offset, std::span<std::byte> to)>& read,
                        std::string_view source) {
  return GgufReader(size, read, source).parse();
}

GgufContents parse_gguf(const SteadyFile& file) {
  GgufContents contents = parse_gguf(
      file.size(), [&](std::size_t offset, std::span<std::byte> to) { file.read(offset, to); }, file.path().native());
  file.require_unchanged();
  return contents;
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) {
    return false;
  }
  std::array<char, magic.size()> found{};
  std::ifstream(path, std::ios::binary).read(found.data(), found.size());
  return path.extension() == ".gguf" || std::string_view(found.data(), found.size()) == magic;
}

}  // namespace shardrun::files
