#include "core/metrics/summary.h"

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "core/files/json.h"
#include "core/metrics/json_text.h"
#include "core/metrics/run_files.h"

namespace shardrun::metrics {
namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

object json_of(const MemoryCategories& categories) {
  return {{"parameters", categories.parameters},       {"gradients", categories.gradients},
          {"optimizer", categories.optimizer},         {"activations", categories.activations},
          {"communication", categories.communication}, {"scratch", categories.scratch}};
}

object json_of(const SentBytes& sent) {
  object json;
  for (const auto& [axis, collectives] : sent) {
    object& by_collective = json[axis].emplace_object();
    for (const auto& [collective, bytes] : collectives) {
      by_collective[collective] = bytes;
    }
  }
  return json;
}

object json_of(const RankSummary& rank) {
  object json{{"host", rank.host},
              {"device", rank.device},
              {"planned_bytes", rank.planned_bytes},
              {"peak_bytes", rank.peak_bytes},
              {"private_bytes", rank.private_bytes},
              {"categories", json_of(rank.categories)},
              {"sent_bytes", json_of(rank.sent_bytes)},
              {"wire_bytes", rank.wire_bytes}};
  if (rank.snapshot_bytes > 0) {
    json["snapshot_bytes"] = rank.snapshot_bytes;
    json["snapshot_peak_bytes"] = rank.snapshot_peak_bytes;
  }
  for (const auto& [name, program] : rank.programs) {
    object& programs = json["programs"].is_null() ? json["programs"].emplace_object() : json["programs"].get_object();
    programs[name] = object{{"calls", program.calls}, {"sent_bytes", json_of(program.sent_bytes)}};
  }
  return json;
}

object json_of(const CheckpointSummary& checkpoints) {
  return {{"saved", checkpoints.saved},
          {"failed", checkpoints.failed},
          {"last_step", checkpoints.last_step < 0 ? value(nullptr) : value(checkpoints.last_step)},
          {"bytes", checkpoints.bytes},
          {"stall_s", checkpoints.stall_s}};
}

array json_of(const std::vector<Attempt>& attempts) {
  array list;
  for (const Attempt& attempt : attempts) {
    list.push_back({{"rank", attempt.rank},
                    {"cause", attempt.cause},
                    {"first_step", attempt.first_step},
                    {"steps", attempt.steps},
                    {"ranks", attempt.ranks},
                    {"seconds", attempt.seconds}});
  }
  return list;
}

array json_of(const std::vector<SlowRank>& slow_ranks) {
  array list;
  for (const SlowRank& slow : slow_ranks) {
    object json{{"rank", slow.rank},
                {"host", slow.host},
                {"cause", to_string(slow.cause)},
                {"first_step", slow.first_step},
                {"last_step", slow.last_step},
                {"behind_s", slow.behind_s},
                {"share", slow.share}};
    if (slow.cause == SlowRank::Cause::link) {
      json.emplace("peer", slow.peer);
      json.emplace("peer_host", slow.peer_host);
      json.emplace("bandwidth", slow.bandwidth);
      json.emplace("usual_bandwidth", slow.usual_bandwidth);
    }
    list.push_back(std::move(json));
  }
  return list;
}

value json_of(const std::optional<double>& number) { return number ? value(*number) : value(nullptr); }

object json_of(const Summary& summary) {
  array ranks;
  for (const RankSummary& rank : summary.ranks) {
    ranks.push_back(json_of(rank));
  }
  object json{{"status", summary.status},
              {"exit_code", summary.exit_code},
              {"error", summary.error.empty() ? value(nullptr) : value(summary.error)},
              {"steps", summary.steps},
              {"seconds", summary.seconds},
              {"loss", json_of(summary.loss)},
              {"val_loss", json_of(summary.val_loss)},
              {"parameters", summary.parameters},
              {"data_bytes", summary.data_bytes},
              {"tokens_per_s", summary.tokens_per_s},
              {"step_ms_median", json_of(summary.step_ms_median)},
              {"checks", summary.checks},
              {"check_s", summary.check_s},
              {"saved", summary.saved.empty() ? value(nullptr) : value(summary.saved)},
              {"ending_s", json_of(summary.ending_s)},
              {"version", summary.origin.version},
              {"command", array(summary.origin.command.begin(), summary.origin.command.end())},
              {"host", summary.origin.host},
              {"started", summary.origin.started},
              {"ended", summary.origin.ended},
              {"ranks", std::move(ranks)}};
  if (summary.strangers > 0) {
    json.emplace("strangers", summary.strangers);
  }
  if (summary.checkpoints) {
    json.emplace("first_step", summary.first_step);
    json.emplace("checkpoints", json_of(*summary.checkpoints));
  }
  if (!summary.attempts.empty()) {
    json.emplace("attempts", json_of(summary.attempts));
  }
  if (!summary.slow_ranks.empty()) {
    json.emplace("slow_ranks", json_of(summary.slow_ranks));
  }
  return json;
}

void append_pretty(std::string& text, const value& json, std::size_t indent);

template <typename Items, typename AppendItem>
void append_items(std::string& text, const Items& items, std::string_view brackets, std::size_t indent,
                  const AppendItem& append_item) {
  text += brackets[0];
  std::string_view separator = "\n";
  for (const auto& item : items) {
    text += separator;
    text.append(indent + 2, ' ');
    append_item(item);
    separator = ",\n";
  }
  if (!items.empty()) {
    text += '\n';
    text.append(indent, ' ');
  }
  text += brackets[1];
}

/// Formats JSON on several lines.
void append_pretty(std::string& text, const value& json, std::size_t indent) {
  if (json.is_object()) {
    append_items(text, json.get_object(), "{}", indent, [&](const boost::json::key_value_pair& pair) {
      append_json(text, std::string_view(pair.key()));
      text += ": ";
      append_pretty(text, pair.value(), indent + 2);
    });
  } else if (json.is_array()) {
    append_items(text, json.get_array(), "[]", indent,
                 [&](const value& item) { append_pretty(text, item, indent + 2); });
  } else {
    append_json_value(text, json);
  }
}

}  // namespace

std::string to_json(const std::vector<SlowRank>& slow_ranks) {
  std::string text;
  append_json_value(text, json_of(slow_ranks));
  return text;
}

std::string to_json(const Summary& summary) {
  std::string text;
  append_pretty(text, json_of(summary), 0);
  text += '\n';
  return text;
}

namespace {

std::optional<double> number_of(const value& json) {
  return json.is_null() ? std::nullopt : std::optional(json.to_number<double>());
}

SentBytes sent_of(const object& json) {
  SentBytes sent;
  for (const auto& [axis, collectives] : json) {
    for (const auto& [collective, bytes] : collectives.as_object()) {
      sent[axis][collective] = bytes.to_number<std::uint64_t>();
    }
  }
  return sent;
}

RankSummary rank_of(const object& json) {
  const object& categories = json.at("categories").as_object();
  const auto bytes = [](const object& from, const char* name) { return from.at(name).to_number<std::uint64_t>(); };
  const value* const device = json.if_contains("device");  // older versions wrote none
  const value* const host = json.if_contains("host");      // likewise
  RankSummary rank{.host = host == nullptr ? "" : std::string(host->as_string()),
                   .device = device == nullptr ? "" : std::string(device->as_string()),
                   .planned_bytes = bytes(json, "planned_bytes"),
                   .peak_bytes = bytes(json, "peak_bytes"),
                   .private_bytes = bytes(json, "private_bytes"),
                   .categories = {bytes(categories, "parameters"), bytes(categories, "gradients"),
                                  bytes(categories, "optimizer"), bytes(categories, "activations"),
                                  bytes(categories, "communication"), bytes(categories, "scratch")},
                   .sent_bytes = sent_of(json.at("sent_bytes").as_object()),
                   .wire_bytes = bytes(json, "wire_bytes")};
  if (json.contains("snapshot_bytes")) {
    rank.snapshot_bytes = bytes(json, "snapshot_bytes");
    rank.snapshot_peak_bytes = bytes(json, "snapshot_peak_bytes");
  }
  if (const value* const programs = json.if_contains("programs")) {
    for (const auto& [name, program] : programs->as_object()) {
      rank.programs[name] = {.calls = program.at("calls").to_number<std::int64_t>(),
                             .sent_bytes = sent_of(program.at("sent_bytes").as_object())};
    }
  }
  return rank;
}

CheckpointSummary checkpoints_of(const object& json) {
  const value& last = json.at("last_step");
  return {.saved = json.at("saved").to_number<std::int64_t>(),
          .failed = json.at("failed").to_number<std::int64_t>(),
          .last_step = last.is_null() ? -1 : last.to_number<std::int64_t>(),
          .bytes = json.at("bytes").to_number<std::uint64_t>(),
          .stall_s = json.at("stall_s").to_number<double>()};
}

}  // namespace

Summary parse_summary(std::string_view json) {
  try {
    const value parsed = files::parse_json_strictly(json, "its JSON");
    const object& from = parsed.as_object();
    Summary summary;
    summary.status = from.at("status").as_string();
    summary.exit_code = from.at("exit_code").to_number<int>();
    summary.error = from.at("error").is_null() ? "" : std::string(from.at("error").as_string());
    summary.steps = from.at("steps").to_number<std::int64_t>();
    summary.seconds = from.at("seconds").to_number<double>();
    summary.loss = number_of(from.at("loss"));
    summary.val_loss = number_of(from.at("val_loss"));
    summary.parameters = from.at("parameters").to_number<std::int64_t>();
    summary.data_bytes = from.at("data_bytes").to_number<std::uint64_t>();
    summary.tokens_per_s = from.at("tokens_per_s").to_number<double>();
    summary.step_ms_median = number_of(from.at("step_ms_median"));
    summary.checks = from.at("checks").to_number<std::int64_t>();
    summary.check_s = from.at("check_s").to_number<double>();
    summary.ending_s = number_of(from.at("ending_s"));
    if (const value* const checkpoints = from.if_contains("checkpoints")) {
      summary.checkpoints = checkpoints_of(checkpoints->as_object());
      summary.first_step = from.at("first_step").to_number<std::int64_t>();
    }
    for (const value& rank : from.at("ranks").as_array()) {
      summary.ranks.push_back(rank_of(rank.as_object()));
    }
    return summary;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::internal, std::string("a rank's summary cannot be read: ") + error.what());
  }
}

std::string text_in_summary(const std::filesystem::path& output, std::string_view field) {
  std::ifstream file(summary_path(output));
  boost::system::error_code failed;
  const value summary = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}), failed);
  const object* const fields = failed ? nullptr : summary.if_object();
  const value* const found = fields == nullptr ? nullptr : fields->if_contains(field);
  return found != nullptr && found->is_string() ? std::string(found->as_string()) : "";
}

void write_summary(const std::filesystem::path& path, const Summary& summary) {
  files::write_file_atomically(path, to_json(summary));
}

}  // namespace shardrun::metrics
