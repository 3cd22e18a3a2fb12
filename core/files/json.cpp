#include "core/files/json.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::files {
namespace {

using ErrorCodeOut = boost::json::error_code;

/// The double nearest to `text`. `rounded` is what Boost.JSON has made of it; version 1.81 can be off by some units in
/// the last place.
double exact_number(boost::json::string_view text, double rounded) {
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc() ? number : rounded;  // the text is outside of a double's range
}

/// A handler for basic_parser. It finds repeated keys in an object, and collects the real numbers.
struct KeyHandler {
  static constexpr std::size_t max_object_size = SIZE_MAX;
  static constexpr std::size_t max_array_size = SIZE_MAX;
  static constexpr std::size_t max_key_size = SIZE_MAX;
  static constexpr std::size_t max_string_size = SIZE_MAX;

  std::vector<std::unordered_set<std::string>> open;
  std::vector<double> reals;  ///< in the order in which they appear in the text
  std::string key;
  bool duplicate = false;  ///< whether `key` occurs twice in its object

  bool on_object_begin(ErrorCodeOut& /*failed*/) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t /*size*/, ErrorCodeOut& /*failed*/) {
    open.pop_back();
    return true;
  }
  bool on_key_part(boost::json::string_view part, std::size_t /*size*/, ErrorCodeOut& /*failed*/) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(boost::json::string_view last, std::size_t /*size*/, ErrorCodeOut& failed) {
    key.append(last.data(), last.size());
    if (!open.back().insert(key).second) {
      duplicate = true;
      failed = boost::json::error::syntax;
      return false;
    }
    key.clear();
    return true;
  }
  bool on_document_begin(ErrorCodeOut& /*failed*/) { return true; }
  bool on_document_end(ErrorCodeOut& /*failed*/) { return true; }
  bool on_array_begin(ErrorCodeOut& /*failed*/) { return true; }
  bool on_array_end(std::size_t /*size*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_string_part(boost::json::string_view /*part*/, std::size_t /*size*/, ErrorCodeOut& /*failed*/) {
    return true;
  }
  bool on_string(boost::json::string_view /*last*/, std::size_t /*size*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_number_part(boost::json::string_view /*part*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_int64(std::int64_t /*value*/, boost::json::string_view /*text*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_uint64(std::uint64_t /*value*/, boost::json::string_view /*text*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_double(double rounded, boost::json::string_view text, ErrorCodeOut& /*failed*/) {
    reals.push_back(exact_number(text, rounded));
    return true;
  }
  bool on_bool(bool /*value*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_null(ErrorCodeOut& /*failed*/) { return true; }
  bool on_comment_part(boost::json::string_view /*part*/, ErrorCodeOut& /*failed*/) { return true; }
  bool on_comment(boost::json::string_view /*last*/, ErrorCodeOut& /*failed*/) { return true; }
};

/// Replaces the real numbers in a value by those of `exact`. Both have the same order, since no key occurs twice.
void set_reals(boost::json::value& json, std::vector<double>::const_iterator& exact) {
  if (double* const real = json.if_double()) {
    *real = *exact++;
  } else if (boost::json::array* const array = json.if_array()) {
    for (boost::json::value& element : *array) {
      set_reals(element, exact);
    }
  } else if (boost::json::object* const object = json.if_object()) {
    for (auto& field : *object) {
      set_reals(field.value(), exact);
    }
  }
}

}  // namespace

boost::json::value parse_json_strictly(std::string_view text, std::string_view source) {
  boost::json::basic_parser<KeyHandler> keys{boost::json::parse_options()};
  boost::json::error_code failed;
  const std::size_t consumed = keys.write_some(false, text.data(), text.size(), failed);
  if (keys.handler().duplicate) {
    throw Error(ErrorCode::data, fmt::format("cannot read {}: the key \"{}\" occurs twice", source,
                                             shardrun::shown(keys.handler().key)));
  }
  if (!failed && consumed < text.size()) {
    failed = boost::json::error::extra_data;
  }
  if (failed) {
    throw Error(ErrorCode::data,
                fmt::format("cannot read {}: not valid JSON at byte {}: {}", source, consumed, failed.message()));
  }
  boost::json::value json = boost::json::parse(boost::json::string_view(text.data(), text.size()));
  auto exact = keys.handler().reals.cbegin();
  set_reals(json, exact);
  return json;
}

}  // namespace shardrun::files
