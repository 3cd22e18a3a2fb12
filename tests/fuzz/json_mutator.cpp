// How libFuzzer changes an input whose lines have JSON. Mostly it changes one value, key or length in the JSON of
// one line, so that the input can still be parsed and reaches the code behind the parser. Otherwise it changes
// bytes, as usual.

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

namespace json = boost::json;

class JsonMutator {
 public:
  explicit JsonMutator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  void change(json::value& root) {
    std::vector<json::value*> all;
    collect(root, all);
    json::value& value = *all[below(all.size())];
    const json::value other = *all[below(all.size())];
    switch (below(4)) {
      case 0: value = other; break;
      case 1: value = another_type(); break;
      default: change_inside(value, other);
    }
  }

 private:
  static void collect(json::value& value, std::vector<json::value*>& to) {
    to.push_back(&value);
    if (value.is_object()) {
      for (auto& member : value.get_object()) {
        collect(member.value(), to);
      }
    } else if (value.is_array()) {
      for (json::value& element : value.get_array()) {
        collect(element, to);
      }
    }
  }

  json::value number() {
    const std::array<json::value, 16> numbers = {
        0,         1,         -1,         2,   255,   65536,  INT32_MAX, std::int64_t{1} << 32U, std::int64_t{1} << 53U,
        INT64_MAX, INT64_MIN, UINT64_MAX, 0.5, 1e308, 1e-310, -0.0};
    return numbers[below(numbers.size())];
  }

  json::value another_type() {
    const std::array<json::value, 6> values = {nullptr, true, "", json::array(), json::object(), number()};
    return values[below(values.size())];
  }

  std::string text() {
    static const std::array<std::string, 10> texts = {
        "",          "..",           "/",           std::string(1, '\0'),   "\xF0\x9F\x98\x80",
        "a b\nc\"d", "\xEF\xBF\xBD", "config.json", std::string(5000, 'a'), "\xE2\x96\x81"};
    return texts[below(texts.size())];
  }

  void change_inside(json::value& value, const json::value& other) {
    if (value.is_object() && !value.get_object().empty()) {
      change_object(value.get_object(), other);
    } else if (value.is_array() && !value.get_array().empty()) {
      change_array(value.get_array(), other);
    } else if (value.is_string()) {
      change_text(value.get_string());
    } else if (value.is_int64()) {
      const std::int64_t old = value.get_int64();
      const auto bits = static_cast<std::uint64_t>(old);
      const std::array<json::value, 7> numbers = {number(),
                                                  static_cast<std::int64_t>(bits + 1),
                                                  static_cast<std::int64_t>(bits - 1),
                                                  static_cast<std::int64_t>(bits * 2),
                                                  old / 2,
                                                  static_cast<std::int64_t>(0 - bits),
                                                  static_cast<double>(old)};
      value = numbers[below(numbers.size())];
    } else if (value.is_bool()) {
      value = !value.get_bool();
    } else {
      value = number();
    }
  }

  void change_object(json::object& object, const json::value& other) {
    const std::string key(std::next(object.begin(), static_cast<std::ptrdiff_t>(below(object.size())))->key());
    const json::value old = object.at(key);
    switch (below(4)) {
      case 0: object.erase(key); break;
      case 1: object[key] = other; break;
      case 2:
        object.erase(key);
        object[text()] = old;
        break;
      default: object[key + text()] = old;
    }
  }

  void change_array(json::array& array, const json::value& other) {
    const std::size_t at = below(array.size());
    const auto place = array.begin() + static_cast<std::ptrdiff_t>(at);
    const json::value old = array[at];
    switch (below(5)) {
      case 0: array.erase(place); break;
      case 1: array[at] = other; break;
      case 2: array.insert(place, old); break;
      case 3: array.insert(place, 1 + below(40), old); break;
      default: std::swap(array[at], array[below(array.size())]);
    }
  }

  void change_text(json::string& value) {
    std::string old(value);
    switch (below(4)) {
      case 0: old = text(); break;
      case 1: old += text(); break;
      case 2: old.resize(below(old.size() + 1)); break;
      default:
        if (!old.empty()) {
          old[below(old.size())] = static_cast<char>(below(256));
        }
    }
    value = old;
  }

  std::mt19937 random_;
};

/// A line with another value in its JSON; the line itself if it has none.
std::string changed_line(const std::string& line, JsonMutator& mutator) {
  const std::size_t begin = std::min(line.find_first_of("[{"), line.size());
  boost::system::error_code fault;
  json::value value = json::parse(std::string_view(line).substr(begin), fault);
  if (fault) {
    return line;
  }
  for (std::size_t changes = 1 + mutator.below(3); changes > 0; --changes) {
    mutator.change(value);
  }
  return line.substr(0, begin) + json::serialize(value);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  JsonMutator mutator(seed);
  if (size == 0 || mutator.below(4) == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::vector<std::string> lines(1);
  for (const char letter : std::string_view(reinterpret_cast<const char*>(data), size)) {
    if (letter == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += letter;
    }
  }
  std::string& line = lines[mutator.below(lines.size())];
  const std::string changed = changed_line(line, mutator);
  if (changed == line || size - line.size() + changed.size() > max_size) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  line = changed;
  std::string all = lines[0];
  for (std::size_t i = 1; i < lines.size(); ++i) {
    all += '\n' + lines[i];
  }
  std::memcpy(data, all.data(), all.size());
  return all.size();
}
