#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/files/mapped_file.h"
#include "core/metrics/run_files.h"
#include "core/report/document.h"

namespace shardrun::report {
namespace {

namespace json = boost::json;

constexpr std::size_t most_spans = 50'000;
constexpr std::size_t most_trace_bytes = std::size_t{1} << 30U;

/// Texts by number.
class Texts {
 public:
  std::int64_t number_of(std::string_view text) {
    const auto [found, is_new] = numbers_.try_emplace(std::string(text), static_cast<std::int64_t>(all_.size()));
    if (is_new) {
      all_.emplace_back(json::string(found->first));
    }
    return found->second;
  }
  [[nodiscard]] const json::array& all() const noexcept { return all_; }

 private:
  std::unordered_map<std::string, std::int64_t> numbers_;
  json::array all_;
};

struct Span {
  std::int64_t process = 0;
  std::int64_t row = 0;
  double begin = 0;   ///< microseconds
  double length = 0;  ///< microseconds
  std::int64_t name = 0;
  std::int64_t kind = 0;
  std::int64_t microbatch = -1;
  std::int64_t chunk = -1;
  bool goes_first = false;
};

/// The name of a category on the page.
std::string_view kind_of(std::string_view category, bool is_of_engine) {
  if (category == "compute") {
    return is_of_engine ? "compute" : "op";
  }
  return category == "communication" ? "transfer" : category;
}

double tenths(double microseconds) { return std::round(10 * microseconds) / 10; }

class Digest {
 public:
  /// Adds an event of the trace. Throws std::exception for other JSON.
  void add(const json::object& event) {
    const json::string& phase = event.at("ph").as_string();
    const json::object* const arguments = event.contains("args") ? event.at("args").if_object() : nullptr;
    const std::string_view name = event.at("name").as_string();
    if (phase == "M" && name == "thread_name" && arguments != nullptr) {
      rows_[row_of(event)] = arguments->at("name").as_string();
    }
    if (phase != "X" || arguments == nullptr) {
      return;
    }
    const auto number = [&](const char* argument) {
      const json::value* const value = arguments->if_contains(argument);
      return value != nullptr && value->is_number() ? value->to_number<std::int64_t>() : -1;
    };
    const std::string_view category = event.at("cat").as_string();
    const auto [process, row] = row_of(event);
    spans_.push_back({.process = process,
                      .row = row,
                      .begin = event.at("ts").to_number<double>(),
                      .length = event.at("dur").to_number<double>(),
                      .name = names_.number_of(name),
                      .kind = kinds_.number_of(kind_of(category, !arguments->contains("phase"))),
                      .microbatch = number("microbatch"),
                      .chunk = number("chunk"),
                      .goes_first = category == "step" || category == "function" || category == "action"});
    if (const std::int64_t step = number("step"); step >= 0) {
      first_step_ = std::min(first_step_, step);
      last_step_ = std::max(last_step_, step);
    }
  }

  /// The trace as the page draws it; null without a span.
  [[nodiscard]] json::value result() {
    if (spans_.empty()) {
      return nullptr;
    }
    const std::size_t left_out = spans_.size() - std::min(spans_.size(), most_spans);
    if (left_out > 0) {
      std::ranges::nth_element(spans_, spans_.begin() + most_spans, [](const Span& a, const Span& b) {
        return std::pair(a.goes_first, a.length) > std::pair(b.goes_first, b.length);
      });
      spans_.resize(most_spans);
    }
    // Of spans that begin together, the outer one comes first.
    std::ranges::sort(spans_, [](const Span& a, const Span& b) {
      return std::tuple(a.process, a.row, a.begin, -a.length) < std::tuple(b.process, b.row, b.begin, -b.length);
    });
    const double origin = std::ranges::min_element(spans_, {}, &Span::begin)->begin;
    json::array ranks;
    for (auto at = spans_.begin(); at != spans_.end();) {
      const std::int64_t process = at->process;
      json::array rows;
      while (at != spans_.end() && at->process == process) {
        const std::int64_t row = at->row;
        json::array spans;
        for (; at != spans_.end() && at->process == process && at->row == row; ++at) {
          spans.push_back(json::array{tenths(at->begin - origin), tenths(at->length), at->name, at->microbatch,
                                      at->chunk, at->kind});
        }
        const auto name = rows_.find({process, row});
        rows.push_back(
            {{"name", name == rows_.end() ? std::to_string(row) : name->second}, {"spans", std::move(spans)}});
      }
      ranks.push_back({{"rank", process - 1}, {"rows", std::move(rows)}});
    }
    json::object trace = {
        {"ranks", std::move(ranks)}, {"names", names_.all()}, {"kinds", kinds_.all()}, {"left_out", left_out}};
    if (last_step_ >= 0) {
      trace["first_step"] = first_step_;
      trace["last_step"] = last_step_;
    }
    return trace;
  }

 private:
  static std::pair<std::int64_t, std::int64_t> row_of(const json::object& event) {
    return {event.at("pid").to_number<std::int64_t>(), event.at("tid").to_number<std::int64_t>()};
  }

  std::vector<Span> spans_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> rows_;
  Texts names_;
  Texts kinds_;
  std::int64_t first_step_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_step_ = -1;
};

/// Reads a trace as runs write it, with one event per line. Throws std::exception for another file.
json::value digest_of(std::string_view text) {
  Digest digest;
  std::array<unsigned char, 4096> memory{};
  bool has_events = false;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line.remove_suffix(line.ends_with(',') ? 1 : 0);
    if (line.starts_with(R"({"ph":)")) {
      has_events = true;
      json::monotonic_resource events(memory.data(), memory.size());
      digest.add(json::parse(json::string_view(line.data(), line.size()), &events).as_object());
    }
  }
  if (!has_events) {
    throw Error(ErrorCode::data, "a trace without events");
  }
  return digest.result();
}

}  // namespace

json::object trace_document(const std::filesystem::path& folder) {
  json::object part = {{"trace", nullptr}};
  const std::filesystem::path path = metrics::trace_path(folder);
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    return part;
  }
  try {
    const files::MappedFile file(path);
    if (file.text().size() > most_trace_bytes) {
      add_note(part, "the trace is left out: trace.json has more than 1 GiB");
    } else {
      part["trace"] = digest_of(file.text());
    }
  } catch (const std::exception&) {
    add_note(part, "the trace is left out: trace.json is no trace that a run has written");
  }
  return part;
}

}  // namespace shardrun::report
