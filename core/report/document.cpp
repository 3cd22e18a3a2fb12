#include "core/report/document.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/process.h"
#include "core/checkpoint/folder.h"
#include "core/files/descriptor.h"
#include "core/files/folder.h"
#include "core/files/json.h"
#include "core/files/mapped_file.h"
#include "core/job/raw.h"
#include "core/metrics/json_text.h"
#include "core/metrics/locked_run_folder.h"
#include "core/metrics/run_files.h"
#include "core/metrics/run_folder.h"

namespace shardrun::report {
namespace {

namespace json = boost::json;

constexpr std::size_t most_steps = 20'000;
constexpr std::size_t most_columns = 40;
constexpr std::size_t most_intervals = 300;
constexpr std::size_t most_picture_bytes = std::size_t{4} << 20U;  ///< of all pictures together
constexpr std::size_t most_json_bytes = std::size_t{1} << 28U;

// Columns of metrics.jsonl that the page does not draw.
constexpr std::array<std::string_view, 2> left_out_columns = {"comm_s", "bandwidth"};

constexpr double missing = std::numeric_limits<double>::quiet_NaN();

/// The numbers of a line of metrics.jsonl by field. null and texts are NaN. Nothing if the text is no such line, such
/// as an unfinished last line of a live run.
std::optional<std::map<std::string_view, double>> numbers_of(std::string_view line) {
  std::map<std::string_view, double> numbers;
  bool is_whole = line.ends_with('}');
  metrics::for_numbers(line, [&](std::string_view name, std::string_view value) {
    double& number = numbers[name];
    number = missing;
    if (value != "null" && !value.starts_with('"')) {
      const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), number);
      is_whole = is_whole && failed == std::errc() && end == value.data() + value.size();
    }
  });
  return is_whole ? std::optional(std::move(numbers)) : std::nullopt;
}

/// A number rounded to 4 digits, which are enough for a drawing.
json::value drawn(double number) {
  std::array<char, 32> digits{};
  const auto [end, failed] =
      std::to_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::general, 4);
  double rounded = number;
  if (failed == std::errc()) {
    std::from_chars(digits.data(), end, rounded);
  }
  return rounded;
}

/// A number as JSON. Whole numbers become integers, as the steps and the sums of tokens in metrics.jsonl are.
json::value number_value(double number) {
  constexpr double most_exact = 0x1p53;
  return std::isnan(number) ? json::value()
         : number == std::floor(number) && std::abs(number) < most_exact
             ? json::value(static_cast<std::int64_t>(number))
             : json::value(number);
}

/// The numbers of metrics.jsonl as columns of equal length.
class Steps {
 public:
  /// Adds a line. Returns false if it cannot be read.
  bool add(std::string_view line) {
    const auto numbers = numbers_of(line);
    if (!numbers || !numbers->contains("step") || std::isnan(numbers->at("step"))) {
      return false;
    }
    const double step = numbers->at("step");
    std::vector<double>& steps = columns_["step"];
    if (numbers->size() == 2 && numbers->contains("val_loss")) {
      const auto same = std::ranges::find(steps.rbegin(), steps.rend(), step);
      if (same != steps.rend()) {  // the step was validated after a later step had been written
        column("val_loss", rows_)[static_cast<std::size_t>(steps.rend() - same) - 1] = numbers->at("val_loss");
        return true;
      }
    }
    while (!steps.empty() && steps.back() >= step) {  // a restart repeats steps
      --rows_;
      for (auto& [name, values] : columns_) {
        values.resize(rows_);
      }
    }
    time_.resize(rows_);
    tokens_.resize(rows_);
    ++rows_;
    for (const auto& [name, number] : *numbers) {
      if (std::ranges::find(left_out_columns, name) == left_out_columns.end() &&
          (columns_.size() < most_columns || columns_.contains(name))) {
        column(std::string(name), rows_).back() = number;
      }
    }
    for (auto& [name, values] : columns_) {
      values.resize(rows_, missing);
    }
    const auto number = [&](std::string_view name) { return numbers->contains(name) ? numbers->at(name) : missing; };
    const double seconds = number("step_s");
    const double passed =
        std::round(number("tokens_per_s") * seconds);  // a whole number of tokens was divided by the time
    time_.push_back((time_.empty() ? 0 : time_.back()) + (std::isnan(seconds) ? 0 : seconds));
    tokens_.push_back((tokens_.empty() ? 0 : tokens_.back()) + (std::isnan(passed) ? 0 : passed));
    return true;
  }

  /// The number n such that every n-th line is kept. The last line, and lines with a validation, are kept, too.
  [[nodiscard]] std::size_t kept_every() const noexcept { return (rows_ + most_steps - 1) / most_steps; }

  [[nodiscard]] json::object columns() const {
    const bool keeps = keeps_validated();
    json::object object;
    const auto add = [&](std::string_view name, const std::vector<double>& values, const auto& shown) {
      json::array& kept = object[name].emplace_array();
      for (std::size_t row = 0; row < rows_; ++row) {
        if (is_kept(row, keeps)) {
          kept.push_back(number_value(shown(values[row])));
        }
      }
    };
    const auto itself = [](double number) { return number; };
    for (const auto& [name, values] : columns_) {
      if (!std::ranges::all_of(values, [](double value) { return std::isnan(value); })) {
        add(name, values, itself);
      }
    }
    if (rows_ > 0 && columns_.contains("step_s")) {
      constexpr double microseconds = 1e6;
      add("time_s", time_, [](double seconds) { return std::round(seconds * microseconds) / microseconds; });
      if (columns_.contains("tokens_per_s")) {
        add("tokens", tokens_, itself);
      }
    }
    return object;
  }

 private:
  std::vector<double>& column(const std::string& name, std::size_t rows) {
    std::vector<double>& values = columns_[name];
    values.resize(rows, missing);
    return values;
  }

  /// Whether rows are kept because they have a validation. They are, unless too many rows have one.
  [[nodiscard]] bool keeps_validated() const {
    const auto validated = columns_.find("val_loss");
    const auto is_there = [](double value) { return !std::isnan(value); };
    return validated != columns_.end() &&
           static_cast<std::size_t>(std::ranges::count_if(validated->second, is_there)) <= most_steps / 4;
  }

  [[nodiscard]] bool is_kept(std::size_t row, bool keeps_validated) const {
    return row % kept_every() == 0 || row + 1 == rows_ ||
           (keeps_validated && !std::isnan(columns_.find("val_loss")->second[row]));
  }

  std::map<std::string, std::vector<double>, std::less<>> columns_;
  std::size_t rows_ = 0;
  // Sums up to each row.
  std::vector<double> time_;
  std::vector<double> tokens_;
};

/// A file of lines to which a run appends. Each call of read() reads what is new.
class GrowingLines {
 public:
  explicit GrowingLines(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls `add` with the last line of the last call, which can have changed, and with each line since. Calls
  /// `begin_again` before if the file does not continue what was read. Adds a note that says how many lines `add`
  /// refused. A last line without a newline does not count as refused, because it can be unfinished.
  template <typename BeginAgain, typename Add>
  void read(json::object& run, const BeginAgain& begin_again, const Add& add) {
    std::ifstream file(path_, std::ios::binary);
    std::string line;
    file.seekg(at_);
    if (!last_.empty() && (!std::getline(file, line) || file.eof() || !continues(line))) {
      *this = GrowingLines(std::move(path_));
      begin_again();
    }
    file.clear();
    file.seekg(at_);
    for (std::streamoff next = at_; std::getline(file, line);) {
      const bool is_refused = !add(line);
      if (file.eof()) {
        break;
      }
      refused_ += next != at_ && last_is_refused_ ? 1 : 0;
      at_ = next;
      next += std::ssize(line) + 1;
      last_is_refused_ = is_refused;
      last_ = std::move(line);
    }
    std::error_code none;
    const std::int64_t refused = refused_ + (last_is_refused_ ? 1 : 0);
    if (file.bad() || (!file.is_open() && std::filesystem::exists(path_, none))) {
      add_note(run, fmt::format("{} cannot be read", path_.filename().native()));
    } else if (refused > 0) {
      add_note(run, fmt::format("{} of {} could not be read", counted(refused, "line"), path_.filename().native()));
    }
  }

 private:
  /// Whether a line is `last_`, or `last_` with a validation loss added.
  [[nodiscard]] bool continues(std::string_view line) const {
    return line.starts_with(std::string_view(last_).substr(0, last_.size() - 1));
  }

  std::filesystem::path path_;
  std::streamoff at_ = 0;  ///< where the last line begins
  std::string last_;       ///< the last line; "": none yet
  bool last_is_refused_ = false;
  std::int64_t refused_ = 0;  ///< lines before the last
};

/// A line of ranks.jsonl, or neighbouring ones added up.
struct Interval {
  static constexpr std::array<const char*, 6> names = {"seconds",  "computing_s", "exposed_s",
                                                       "hidden_s", "input_s",     "sent_bytes"};

  std::int64_t step = 0;
  std::int64_t steps = 0;
  std::array<std::vector<double>, names.size()> by_rank;  ///< in the order of `names`; empty: unknown

  [[nodiscard]] std::size_t ranks() const noexcept { return by_rank[0].size(); }

  void add(const Interval& later) {
    step = later.step;
    steps += later.steps;
    for (std::size_t n = 0; n < names.size(); ++n) {
      by_rank[n].resize(later.by_rank[n].size());
      for (std::size_t rank = 0; rank < by_rank[n].size(); ++rank) {
        by_rank[n][rank] += later.by_rank[n][rank];
      }
    }
  }
};

Interval interval_of(const json::object& line) {
  Interval interval{.step = line.at("step").to_number<std::int64_t>(),
                    .steps = line.at("steps").to_number<std::int64_t>(),
                    .by_rank = {}};
  for (std::size_t n = 0; n < Interval::names.size(); ++n) {
    if (const json::value* const numbers = line.if_contains(Interval::names[n])) {
      for (const json::value& number : numbers->as_array()) {
        interval.by_rank[n].push_back(number.is_null() ? 0 : number.to_number<double>());
      }
    }
  }
  return interval;
}

json::object json_of(const std::vector<Interval>& intervals) {
  json::object object;
  for (const Interval& interval : intervals) {
    const auto append = [&](std::string_view name, json::value value) {
      json::value& list = object[name];
      (list.is_array() ? list.as_array() : list.emplace_array()).push_back(std::move(value));
    };
    append("step", interval.step);
    append("steps", interval.steps);
    for (std::size_t n = 0; n < Interval::names.size(); ++n) {
      json::array numbers;
      for (const double number : interval.by_rank[n]) {
        numbers.push_back(drawn(number));
      }
      append(Interval::names[n], std::move(numbers));
    }
  }
  return object;
}

/// What each rank did in each interval, and the slow ranks of the last line. Only the intervals since the last change
/// of the number of ranks are kept.
class RankTimes {
 public:
  /// Adds a line. Returns false if it cannot be read.
  bool add(std::string_view line) {
    try {
      const json::object fields = json::parse(json::string_view(line.data(), line.size())).as_object();
      Interval next = interval_of(fields);
      const json::value* const slow = fields.if_contains("slow_ranks");
      slow_ranks_ = slow != nullptr && slow->is_array() ? slow->get_array() : json::array();
      while (!intervals_.empty() && intervals_.back().step >= next.step) {  // a restart repeats steps
        intervals_.pop_back();
      }
      if (!intervals_.empty() && intervals_.back().ranks() != next.ranks()) {
        intervals_.clear();
        has_other_ranks_ = true;
      }
      intervals_.push_back(std::move(next));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  void add_to(json::object& run) const {
    if (has_other_ranks_) {
      add_note(run, "the number of ranks changed; their times are shown from the last change on");
    }
    const std::size_t together = (intervals_.size() + most_intervals - 1) / most_intervals;
    std::vector<Interval> shown;
    for (std::size_t i = 0; i < intervals_.size(); ++i) {
      const bool follows = i > 0 && intervals_[i].step - intervals_[i].steps == intervals_[i - 1].step;
      if (i % together == 0 || !follows) {  // an interval that a restart cut short leaves a gap
        shown.push_back(intervals_[i]);
      } else {
        shown.back().add(intervals_[i]);
      }
    }
    run["rank_times"] = shown.empty() ? json::value() : json::value(json_of(shown));
    run["slow_ranks"] = slow_ranks_;
  }

 private:
  std::vector<Interval> intervals_;
  bool has_other_ranks_ = false;
  json::array slow_ranks_;
};

/// Notes that metrics.jsonl ends before the steps that the summary counts.
void note_missing_steps(json::object& run, const json::object& summary) {
  const auto number = [&](std::string_view name) {
    const json::value* const value = summary.if_contains(name);
    return value != nullptr && value->is_int64() ? value->get_int64() : 0;
  };
  const json::value* const steps = run["steps"].as_object().if_contains("step");
  const std::int64_t end = number("first_step") + number("steps");
  const auto last = steps == nullptr ? 0 : steps->as_array().back().to_number<std::int64_t>();
  if (run["task"] != "infer" && last < end) {
    add_note(run, fmt::format("metrics.jsonl {}, and the run ended with step {}",
                              last == 0 ? "has no steps" : fmt::format("ends with step {}", last), end));
  }
}

/// The type that a field of a summary must have, if the field is not null.
enum class Form : std::uint8_t { number, text, list, object };

struct Field {
  std::string_view name;
  Form form;
};

constexpr std::array summary_fields = {
    Field{"status", Form::text},       Field{"exit_code", Form::number},    Field{"error", Form::text},
    Field{"steps", Form::number},      Field{"first_step", Form::number},   Field{"seconds", Form::number},
    Field{"loss", Form::number},       Field{"val_loss", Form::number},     Field{"parameters", Form::number},
    Field{"data_bytes", Form::number}, Field{"tokens_per_s", Form::number}, Field{"step_ms_median", Form::number},
    Field{"checks", Form::number},     Field{"check_s", Form::number},      Field{"saved", Form::text},
    Field{"ending_s", Form::number},   Field{"strangers", Form::number},    Field{"version", Form::text},
    Field{"command", Form::list},      Field{"host", Form::text},           Field{"started", Form::text},
    Field{"ended", Form::text},        Field{"checkpoints", Form::object},  Field{"ranks", Form::list},
    Field{"attempts", Form::list},     Field{"slow_ranks", Form::list}};
constexpr std::array fields_of_rank = {
    Field{"host", Form::text},         Field{"device", Form::text},          Field{"planned_bytes", Form::number},
    Field{"peak_bytes", Form::number}, Field{"private_bytes", Form::number}, Field{"snapshot_bytes", Form::number},
    Field{"wire_bytes", Form::number}, Field{"categories", Form::object},    Field{"sent_bytes", Form::object}};
constexpr std::array fields_of_attempt = {Field{"rank", Form::number},       Field{"cause", Form::text},
                                          Field{"first_step", Form::number}, Field{"steps", Form::number},
                                          Field{"ranks", Form::number},      Field{"seconds", Form::number}};
constexpr std::array fields_of_slow_rank = {Field{"rank", Form::number},
                                            Field{"host", Form::text},
                                            Field{"cause", Form::text},
                                            Field{"peer", Form::number},
                                            Field{"peer_host", Form::text},
                                            Field{"first_step", Form::number},
                                            Field{"last_step", Form::number},
                                            Field{"behind_s", Form::number},
                                            Field{"share", Form::number},
                                            Field{"bandwidth", Form::number},
                                            Field{"usual_bandwidth", Form::number}};

Form form_of(const json::value& value) noexcept {
  return value.is_string()   ? Form::text
         : value.is_array()  ? Form::list
         : value.is_object() ? Form::object
                             : Form::number;
}

const char* text_of(Form form) noexcept {
  constexpr std::array names = {"a number", "a text", "a list", "an object"};
  return names[static_cast<std::size_t>(form)];
}

/// Removes fields that have another form than they should have, and collects their names for a note.
class FormCheck {
 public:
  void check(json::object& object, const std::string& path, std::span<const Field> fields) {
    for (const Field& field : fields) {
      const json::value* const value = object.if_contains(field.name);
      if (value != nullptr && !is_of(*value, field.form)) {
        wrong_.push_back(fmt::format("{}{} ({} was expected)", path, field.name, text_of(field.form)));
        object.stable_erase(object.find(field.name));
      }
    }
  }

  /// Checks the objects in the list `name` of `object`.
  void check_list(json::object& object, const std::string& name, std::span<const Field> fields) {
    json::value* const list = object.if_contains(name);
    if (list == nullptr || !list->is_array()) {
      return;
    }
    for (std::size_t n = 0; n < list->get_array().size(); ++n) {
      json::value& each = list->get_array()[n];
      const std::string path = fmt::format("{}[{}]", name, n);
      if (!each.is_object()) {
        wrong_.push_back(fmt::format("{} ({} was expected)", path, text_of(Form::object)));
        each.emplace_object();
      }
      check(each.get_object(), path + '.', fields);
    }
  }

  /// Checks that an object has only numbers, and objects of numbers.
  void check_numbers(json::object& object, const std::string& path) {
    for (auto each = object.begin(); each != object.end();) {
      const std::string name = path + std::string(each->key());
      if (each->value().is_object()) {
        check_numbers(each->value().get_object(), name + '.');
      } else if (!is_of(each->value(), Form::number)) {
        wrong_.push_back(fmt::format("{} ({} was expected)", name, text_of(Form::number)));
        each = object.stable_erase(each);
        continue;
      }
      ++each;
    }
  }

  void note(json::object& run, std::string_view source) const {
    constexpr std::size_t most = 4;
    if (wrong_.empty()) {
      return;
    }
    const std::vector<std::string> first(wrong_.begin(),
                                         wrong_.begin() + std::min<std::ptrdiff_t>(most, std::ssize(wrong_)));
    add_note(run, fmt::format("of {} this is left out: {}{}", source, fmt::join(first, ", "),
                              wrong_.size() > most ? fmt::format(", and {} more", wrong_.size() - most) : ""));
  }

 private:
  [[nodiscard]] static bool is_of(const json::value& value, Form form) noexcept {
    return value.is_null() || (form == Form::number ? value.is_number() : form_of(value) == form);
  }

  std::vector<std::string> wrong_;
};

/// Removes from a summary, and from the objects in it that the page reads, fields that have a wrong form.
void check_summary(json::object& run, json::object& summary) {
  FormCheck form;
  form.check(summary, "", summary_fields);
  form.check_list(summary, "ranks", fields_of_rank);
  form.check_list(summary, "attempts", fields_of_attempt);
  form.check_list(summary, "slow_ranks", fields_of_slow_rank);
  if (json::value* const checkpoints = summary.if_contains("checkpoints");
      checkpoints != nullptr && checkpoints->is_object()) {
    form.check_numbers(checkpoints->get_object(), "checkpoints.");
  }
  if (json::value* const ranks = summary.if_contains("ranks"); ranks != nullptr && ranks->is_array()) {
    for (std::size_t n = 0; n < ranks->get_array().size(); ++n) {
      json::object& rank = ranks->get_array()[n].get_object();
      for (const char* const name : {"categories", "sent_bytes"}) {
        if (json::value* const numbers = rank.if_contains(name); numbers != nullptr && numbers->is_object()) {
          form.check_numbers(numbers->get_object(), fmt::format("ranks[{}].{}.", n, name));
        }
      }
    }
  }
  form.note(run, "the summary");
}

std::optional<json::object> read_summary(json::object& run, const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    return std::nullopt;
  }
  try {
    json::object summary =
        files::parse_json_strictly(files::read_text_file(path, most_json_bytes), path.native()).as_object();
    check_summary(run, summary);
    return summary;
  } catch (const std::exception& error) {
    add_note(run, fmt::format("the summary is left out: {}", error.what()));
    return std::nullopt;
  }
}

/// Sets the field `name` of `to` to the field `from_name` of `from`, if `from` has it.
void copy(json::object& to, std::string_view name, const json::object& from, std::string_view from_name) {
  if (const json::value* const value = from.if_contains(from_name)) {
    to[name] = *value;
  }
}

void add_ranks(json::object& run, const json::object& summary) {
  const json::value* const ranks = summary.if_contains("ranks");
  if (ranks == nullptr || !ranks->is_array()) {
    return;
  }
  for (std::size_t r = 0; r < ranks->get_array().size(); ++r) {
    const json::object* const from = ranks->get_array()[r].if_object();
    if (from == nullptr) {
      continue;
    }
    json::object& rank = rank_of(run, r);
    copy(rank, "host", *from, "host");
    copy(rank, "device", *from, "device");
    copy(rank, "measured_peak", *from, "peak_bytes");
    if (rank.contains("measured_peak") && rank["measured_peak"] == 0) {
      rank["measured_peak"] = nullptr;  // the rank died before it could tell
    }
    copy(rank, "private_bytes", *from, "private_bytes");
    copy(rank, "sent", *from, "sent_bytes");
    copy(rank, "wire_bytes", *from, "wire_bytes");
    const json::value* const categories = from->if_contains("categories");
    json::object planned = categories != nullptr && categories->is_object() ? categories->get_object() : json::object();
    copy(planned, "peak", *from, "planned_bytes");
    copy(planned, "snapshot", *from, "snapshot_bytes");
    rank["planned"] = std::move(planned);
  }
}

/// The attempts that were followed by others, of a run that has no summary yet.
json::array attempts_of(json::object& run, const std::filesystem::path& folder) {
  json::array attempts;
  std::error_code none;
  for (std::int64_t n = 1;; ++n) {
    const std::filesystem::path attempt = metrics::attempts_path(folder) / std::to_string(n);
    if (!std::filesystem::exists(attempt, none)) {
      return attempts;
    }
    if (const std::optional<json::object> summary = read_summary(run, metrics::summary_path(attempt))) {
      json::object each = {{"rank", nullptr}};
      copy(each, "cause", *summary, "error");
      copy(each, "first_step", *summary, "first_step");
      copy(each, "steps", *summary, "steps");
      copy(each, "seconds", *summary, "seconds");
      attempts.push_back(std::move(each));
    }
  }
}

std::string base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // OpenSSL writes a NUL, too
  const int size =
      ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

/// Adds the picture of the last step and the animation of each field that has them.
void add_pictures(json::object& run, const std::filesystem::path& folder) {
  std::map<std::pair<std::string, std::string>, metrics::SavedPicture> last;  // by field and extension
  for (metrics::SavedPicture& picture : metrics::pictures_of(folder)) {
    metrics::SavedPicture& kept = last[{picture.field, picture.path.extension().string()}];
    if (kept.path.empty() || !picture.step || (kept.step && *picture.step > *kept.step)) {
      kept = std::move(picture);
    }
  }
  json::array& pictures = run["pictures"].emplace_array();
  std::size_t bytes = 0;
  std::vector<std::string> left_out;
  for (const auto& [key, picture] : last) {
    const bool is_animation = key.second == ".gif";
    try {
      const files::MappedFile file(picture.path);
      if (!file.text().starts_with(is_animation ? "GIF8" : "\x89PNG")) {
        add_note(run, fmt::format("the picture {} is left out: it is no {} file", picture.path.filename().native(),
                                  is_animation ? "GIF" : "PNG"));
        continue;
      }
      if (file.text().size() > most_picture_bytes - bytes) {
        left_out.push_back(picture.path.filename().native());
        continue;
      }
      bytes += file.text().size();
      pictures.push_back({{"field", picture.field},
                          {"step", picture.step ? json::value(*picture.step) : json::value()},
                          {"title", fmt::format("{}, {}", picture.field,
                                                is_animation   ? "all saved steps"
                                                : picture.step ? fmt::format("step {}", *picture.step)
                                                               : "last step")},
                          {"data", fmt::format("data:image/{};base64,{}", key.second.substr(1), base64(file.text()))}});
    } catch (const Error& error) {
      add_note(run, fmt::format("a picture is left out: {}", error.message()));
    }
  }
  for (const std::string& name : left_out) {
    add_note(run, fmt::format("the picture {} is left out: pictures may have 4 MiB together", name));
  }
}

/// Adds the steps of the checkpoints in the folder.
void add_checkpoints(json::object& run, const std::filesystem::path& folder) {
  json::array& steps = run["checkpoints"].emplace_array();
  for (const checkpoint::Listed& listed : checkpoint::list_checkpoints(folder / "checkpoints")) {
    if (listed.step >= 0) {
      steps.push_back(listed.step);
    }
  }
}

/// The status of a run without a summary.
void set_status(json::object& run, const std::filesystem::path& folder) {
  const files::FileDescriptor lock(::open(metrics::lock_path(folder).c_str(), O_RDONLY | O_CLOEXEC));
  const std::string process = lock.is_open() ? metrics::process_of(metrics::owner_in(lock)) : "";
  if (metrics::is_held(folder)) {
    run["status"] = "running";
  } else if (process.ends_with(" on " + host_name())) {
    run["status"] = "failed";
    run["error"] = fmt::format("there is no summary: {}, the first of the run, was killed", process);
  } else {
    run["status"] = "unknown";
    run["error"] = fmt::format("there is no summary: whether {} goes on cannot be seen from this machine",
                               process.empty() ? "the run" : process);
  }
}

}  // namespace

json::object& rank_of(json::object& run, std::size_t rank) {
  json::array& ranks = run["ranks"].is_array() ? run["ranks"].as_array() : run["ranks"].emplace_array();
  while (ranks.size() <= rank) {
    ranks.push_back(json::object{{"rank", ranks.size()}});
  }
  return ranks[rank].as_object();
}

void add_note(json::object& run, std::string_view text) {
  json::value& notes = run["notes"];
  (notes.is_array() ? notes.as_array() : notes.emplace_array()).push_back(json::value(std::string(text)));
}

void join(json::object& run, const json::object& part) {
  for (const auto& [key, value] : part) {
    if (key == "notes") {
      for (const json::value& note : value.as_array()) {
        add_note(run, note.as_string());
      }
    } else if (key == "ranks") {
      for (std::size_t r = 0; r < value.as_array().size(); ++r) {
        json::object& rank = rank_of(run, r);
        for (const auto& [name, planned] : value.as_array()[r].as_object()) {
          if (!rank.contains(name) || name == "planned") {
            rank[name] = planned;
          }
        }
      }
    } else {
      run[key] = value;
    }
  }
}

void set_job(json::object& run, const std::string& text) {
  const job::RawJob raw = job::read_job_text(text, "job.ini");
  json::array settings;
  for (const job::RawSection& section : raw.sections) {
    for (const job::RawSetting& setting : section.settings) {
      settings.push_back(json::array{section.name, setting.key, setting.value});
    }
  }
  run["job"] = json::object{{"text", text}, {"settings", std::move(settings)}};
  const auto value_of = [&](std::string_view section, std::string_view key) {
    const job::RawSection* const found = raw.find(section);
    const job::RawSetting* const setting = found == nullptr ? nullptr : found->find(key);
    return setting == nullptr ? std::string() : setting->value;
  };
  const std::string task = value_of("job", "task");
  run["task"] = task.empty() ? "train" : task;
  const std::string continued = value_of("infer", "tokens");
  const bool has_tokens = !value_of("data", "text").empty() || !value_of("data", "tokens").empty() ||
                          (!continued.empty() && continued != "0");
  run["unit"] = has_tokens ? "tok" : "samples";
}

struct RunReader::Read {
  explicit Read(const std::filesystem::path& folder)
      : lines_of_steps(metrics::metrics_path(folder)), lines_of_times(metrics::ranks_path(folder)) {}

  GrowingLines lines_of_steps;
  Steps steps;
  GrowingLines lines_of_times;
  RankTimes times;
};

RunReader::RunReader(std::filesystem::path folder, std::string name)
    : folder_(std::move(folder)), name_(std::move(name)), read_(std::make_unique<Read>(folder_)) {}
RunReader::RunReader(RunReader&&) noexcept = default;
RunReader::~RunReader() = default;

void RunReader::add_lines(json::object& run) {
  Read& read = *read_;
  read.lines_of_steps.read(
      run, [&] { read.steps = {}; }, [&](std::string_view line) { return read.steps.add(line); });
  run["steps"] = read.steps.columns();
  run["kept_every"] = std::max<std::size_t>(1, read.steps.kept_every());
  read.lines_of_times.read(
      run, [&] { read.times = {}; }, [&](std::string_view line) { return read.times.add(line); });
  read.times.add_to(run);
}

json::object RunReader::document() {
  const std::filesystem::path& folder = folder_;
  const std::string& name = name_;
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none)) {
    throw Error(ErrorCode::usage,
                is_page(folder) ? fmt::format("'{}' is a page already: open it in a browser, or name the output folder "
                                              "of a run to make one",
                                              name)
                : std::filesystem::exists(folder, none)
                    ? fmt::format("'{}' is a file: name the output folder of a run ([job] output)", name)
                    : fmt::format("there is no folder '{}': name the output folder of a run", name));
  }
  const bool has_job = std::filesystem::exists(metrics::job_path(folder), none);
  if (!metrics::is_of_a_run(folder) && !std::filesystem::exists(metrics::summary_path(folder), none)) {
    throw Error(ErrorCode::usage, fmt::format("'{}' is not the folder of a run: it has neither .lock nor summary.json; "
                                              "name the output folder of a run ([job] output)",
                                              name));
  }
  json::object run = {{"name", name},   {"status", ""},           {"task", "train"},       {"unit", "samples"},
                      {"job", nullptr}, {"ranks", json::array()}, {"notes", json::array()}};
  try {
    if (has_job) {
      set_job(run, files::read_text_file(metrics::job_path(folder), job::max_file_bytes));
    }
  } catch (const Error& error) {
    add_note(run, fmt::format("the job is left out: {}", error.message()));
  }
  add_lines(run);
  FormCheck form;
  form.check_list(run, "slow_ranks", fields_of_slow_rank);
  form.note(run, "ranks.jsonl");
  add_pictures(run, folder);
  add_checkpoints(run, folder);
  const std::optional<json::object> summary = read_summary(run, metrics::summary_path(folder));
  run["summary"] = summary ? json::value(*summary) : json::value();
  if (!summary) {
    set_status(run, folder);
    run["attempts"] = attempts_of(run, folder);
    return run;
  }
  copy(run, "status", *summary, "status");
  copy(run, "error", *summary, "error");
  run["slow_ranks"] = json::array();
  copy(run, "slow_ranks", *summary, "slow_ranks");
  copy(run, "parameters", *summary, "parameters");
  run["attempts"] = json::array();
  copy(run, "attempts", *summary, "attempts");
  add_ranks(run, *summary);
  note_missing_steps(run, *summary);
  return run;
}

}  // namespace shardrun::report
