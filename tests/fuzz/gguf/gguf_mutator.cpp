// How libFuzzer changes a GGUF file. Mostly it changes one field of the head (a key, a type, a count, a length, a
// value, a dimension, an offset), or a whole value or tensor, and the rest stays valid. Otherwise it changes bytes,
// as usual.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

constexpr std::uint32_t text_type = 8;
constexpr std::uint32_t array_type = 9;
/// Bytes of a value by its type; 0 for texts and arrays.
constexpr std::array<std::size_t, 13> widths = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct MutatedValue {
  std::uint32_t type = 0;
  std::string bytes;                  ///< a number, or a text
  std::uint32_t of = 0;               ///< type of an array's elements
  std::vector<std::string> elements;  ///< their bytes
};

struct MutatedTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

std::string little_endian(std::uint64_t number, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text += static_cast<char>(i < 8 ? number >> (8 * i) : 0);
  }
  return text;
}

/// Reads a head; `cut` says that it ended early.
struct HeadReader {
  std::string_view rest;
  bool cut = false;

  std::string take(std::uint64_t bytes) {
    cut = cut || bytes > rest.size();
    const std::string taken(rest.substr(0, cut ? 0 : bytes));
    rest.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t made = 0;
    const std::string taken = take(bytes);
    for (std::size_t i = taken.size(); i-- > 0;) {
      made = made << 8U | static_cast<std::uint8_t>(taken[i]);
    }
    return made;
  }
  std::string text() { return take(number(8)); }
  std::string value(std::uint32_t type) {
    cut = cut || type >= widths.size() || type == array_type;
    return cut ? "" : type == text_type ? text() : take(widths[type]);
  }
};

struct MutatedFile {
  std::string begin;  ///< magic and version
  std::uint64_t more_values = 0;
  std::uint64_t more_tensors = 0;
  std::vector<std::pair<std::string, MutatedValue>> values;
  std::vector<MutatedTensor> tensors;
  std::string blocks;  ///< from the end of the table of tensors on, without the padding

  static std::optional<MutatedFile> read(std::string_view file) {
    HeadReader reader{file};
    MutatedFile made;
    made.begin = reader.take(8);
    const std::uint64_t tensors = reader.number(8);
    const std::uint64_t values = reader.number(8);
    for (std::uint64_t i = 0; i < values && !reader.cut; ++i) {
      auto& [key, value] = made.values.emplace_back();
      key = reader.text();
      value.type = static_cast<std::uint32_t>(reader.number(4));
      if (value.type != array_type) {
        value.bytes = reader.value(value.type);
        continue;
      }
      value.of = static_cast<std::uint32_t>(reader.number(4));
      const std::uint64_t count = reader.number(8);
      for (std::uint64_t e = 0; e < count && !reader.cut; ++e) {
        value.elements.push_back(reader.value(value.of));
      }
    }
    for (std::uint64_t i = 0; i < tensors && !reader.cut; ++i) {
      MutatedTensor& tensor = made.tensors.emplace_back();
      tensor.name = reader.text();
      const std::uint64_t dimensions = reader.number(4);
      for (std::uint64_t d = 0; d < dimensions && !reader.cut; ++d) {
        tensor.shape.push_back(reader.number(8));
      }
      tensor.type = static_cast<std::uint32_t>(reader.number(4));
      tensor.offset = reader.number(8);
    }
    if (reader.cut) {
      return std::nullopt;
    }
    const std::size_t padding = (32 - (file.size() - reader.rest.size()) % 32) % 32;
    made.blocks = reader.rest.substr(std::min(padding, reader.rest.size()));
    return made;
  }

  [[nodiscard]] std::string written() const {
    const auto text = [](const std::string& bytes) { return little_endian(bytes.size(), 8) + bytes; };
    std::string file =
        begin + little_endian(tensors.size() + more_tensors, 8) + little_endian(values.size() + more_values, 8);
    for (const auto& [key, value] : values) {
      file += text(key) + little_endian(value.type, 4);
      if (value.type != array_type) {
        file += value.type == text_type ? text(value.bytes) : value.bytes;
        continue;
      }
      file += little_endian(value.of, 4) + little_endian(value.elements.size(), 8);
      for (const std::string& element : value.elements) {
        file += value.of == text_type ? text(element) : element;
      }
    }
    for (const MutatedTensor& tensor : tensors) {
      file += text(tensor.name) + little_endian(tensor.shape.size(), 4);
      for (const std::uint64_t size : tensor.shape) {
        file += little_endian(size, 8);
      }
      file += little_endian(tensor.type, 4) + little_endian(tensor.offset, 8);
    }
    return file.append((32 - file.size() % 32) % 32, '\0') + blocks;
  }
};

class GgufMutator {
 public:
  explicit GgufMutator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  void change(MutatedFile& file) {
    const std::size_t kind = below(20);
    if (kind < 11 && !file.values.empty()) {
      change_values(file.values);
    } else if (kind < 18 && !file.tensors.empty()) {
      change_tensors(file.tensors);
    } else if (kind == 18) {
      (below(2) == 0 ? file.more_values : file.more_tensors) = number(0);
    } else {
      file.blocks.resize(below(2 * file.blocks.size() + 1));
    }
  }

 private:
  std::uint64_t number(std::uint64_t old) {
    const std::array<std::uint64_t, 17> numbers = {old + 1,
                                                   old - 1,
                                                   old * 2,
                                                   old / 2,
                                                   0,
                                                   1,
                                                   2,
                                                   31,
                                                   32,
                                                   255,
                                                   65536,
                                                   0x7FFFFFFF,
                                                   0xFFFFFFFF,
                                                   std::uint64_t{1} << 33U,
                                                   std::uint64_t{1} << 44U,
                                                   static_cast<std::uint64_t>(INT64_MAX),
                                                   UINT64_MAX};
    return numbers[below(numbers.size())];
  }

  void change_text(std::string& text, const std::string& other) {
    switch (below(5)) {
      case 0: text = other; break;
      case 1: text.clear(); break;
      case 2: text += "\xE2\x96\x81"; break;
      case 3: text.resize(below(text.size() + 1)); break;
      default:
        if (!text.empty()) {
          text[below(text.size())] = static_cast<char>(below(256));
        }
    }
  }

  void change_bytes(std::uint32_t type, std::string& bytes, const std::string& other) {
    if (type == text_type) {
      change_text(bytes, other);
      return;
    }
    std::uint64_t old = 0;
    std::memcpy(&old, bytes.data(), std::min(bytes.size(), sizeof old));
    bytes = little_endian(below(8) == 0 ? random_() : number(old), bytes.size());
  }

  void change_values(std::vector<std::pair<std::string, MutatedValue>>& values) {
    const std::size_t at = below(values.size());
    const auto other = values[below(values.size())];
    auto& [key, value] = values[at];
    switch (below(8)) {
      case 0: values.erase(values.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 1: values.push_back(other); break;
      case 2: change_text(key, other.first); break;
      case 3: value = other.second; break;
      default:
        if (value.type != array_type) {
          change_bytes(value.type, value.bytes, other.second.bytes);
        } else if (!value.elements.empty()) {
          change_elements(value);
        }
    }
  }

  void change_elements(MutatedValue& value) {
    const std::size_t at = below(value.elements.size());
    const std::string other = value.elements[below(value.elements.size())];
    switch (below(4)) {
      case 0: value.elements.erase(value.elements.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 1: value.elements.push_back(other); break;
      case 2: value.elements[at] = other; break;
      default: change_bytes(value.of, value.elements[at], other);
    }
  }

  void change_tensors(std::vector<MutatedTensor>& tensors) {
    const std::size_t at = below(tensors.size());
    const MutatedTensor other = tensors[below(tensors.size())];
    MutatedTensor& tensor = tensors[at];
    constexpr std::array<std::uint32_t, 11> types = {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30};
    switch (below(8)) {
      case 0: tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 1: tensors.push_back(other); break;
      case 2: change_text(tensor.name, other.name); break;
      case 3:
        tensor.type = below(4) == 0 ? static_cast<std::uint32_t>(number(tensor.type)) : types[below(types.size())];
        break;
      case 4: tensor.offset = number(tensor.offset); break;
      case 5: tensor.shape = other.shape; break;
      case 6: tensor.shape.push_back(number(1)); break;
      default:
        if (!tensor.shape.empty()) {
          std::uint64_t& size = tensor.shape[below(tensor.shape.size())];
          size = number(size);
        }
    }
  }

  std::mt19937 random_;
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  GgufMutator mutator(seed);
  std::optional<MutatedFile> file =
      mutator.below(4) == 0 ? std::nullopt
                            : MutatedFile::read(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!file) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  for (std::size_t changes = 1 + mutator.below(3); changes > 0; --changes) {
    mutator.change(*file);
  }
  const std::string made = file->written();
  if (made.size() > max_size) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::memcpy(data, made.data(), made.size());
  return made.size();
}
