#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/files/folder.h"
#include "core/metrics/run_files.h"
#include "core/report/run_pictures.h"

namespace shardrun::cli {
namespace {

report::Scale scale_of(const std::string& text) {
  report::Scale scale;
  const char* const end = text.data() + text.size();
  const auto [comma, bad_low] = std::from_chars(text.data(), end, scale.low);
  const bool has_both = bad_low == std::errc() && comma != end && *comma == ',';
  const auto [rest, bad_high] = std::from_chars(has_both ? comma + 1 : end, end, scale.high);
  if (!has_both || bad_high != std::errc() || rest != end || !std::isfinite(scale.low) || !std::isfinite(scale.high) ||
      !(scale.low < scale.high)) {
    throw Error(ErrorCode::usage,
                fmt::format("--range: expected two numbers, the lower one first, as in -1,1; found '{}'", text));
  }
  return scale;
}

report::PictureSettings picture_settings(const Parsed& parsed) {
  report::PictureSettings settings;
  if (const std::optional<std::string> colors = parsed.get("colors")) {
    if (*colors != "sequential" && *colors != "diverging") {
      throw Error(ErrorCode::usage, fmt::format("--colors: expected sequential or diverging, found '{}'", *colors));
    }
    settings.map = *colors == "diverging" ? report::ColorMap::diverging : report::ColorMap::sequential;
  }
  if (const std::optional<std::string> range = parsed.get("range")) {
    settings.scale = scale_of(*range);
  }
  return settings;
}

int picture(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "picture", words,
      {{.name = "step", .value = "N", .help = "the step to draw (default: the last that was saved)"},
       {.name = "all", .help = "all saved steps, as an animation (GIF)"},
       {.name = "over-time", .help = "of a field of one dimension: all saved steps in one picture, time upwards"},
       {.name = "to", .value = "FILE", .help = "the file (default: in the folder pictures of a run, else here)"},
       replace_option(),
       {.name = "colors",
        .value = "MAP",
        .help = "sequential (default): from dark to light; diverging: with white at zero"},
       {.name = "range",
        .value = "LOW,HIGH",
        .help = "the numbers at the ends of the scale (default: the least and the greatest)"},
       {.name = "fps", .value = "N", .help = "saved steps a second in an animation (default 10)", .needs = {"all"}}},
      2, 2);
  if (parsed.help_shown) {
    return 0;
  }
  const bool is_animation = parsed.has("all");
  const bool is_over_time = parsed.has("over-time");
  if ((is_animation ? 1 : 0) + (is_over_time ? 1 : 0) + (parsed.has("step") ? 1 : 0) > 1) {
    throw Error(ErrorCode::usage, "picture: give one of --step, --all and --over-time");
  }
  const report::PictureSettings settings = picture_settings(parsed);
  const double seconds = 1 / parsed.real("fps", 1 / report::usual_seconds, 0.01, 100);
  const std::string_view extension = is_animation ? ".gif" : ".png";
  const std::filesystem::path run = parsed.positional[0];
  const std::string& name = parsed.positional[1];
  const std::filesystem::path given = parsed.get("to").value_or("");
  if (parsed.has("to") && given.extension() != extension) {
    throw Error(ErrorCode::usage,
                fmt::format("--to: the file is a {} picture: expected a name that ends in {}, found '{}'",
                            extension.substr(1), extension, given.native()));
  }
  const std::int64_t wanted = parsed.integer("step", -1, 0, std::numeric_limits<std::int64_t>::max());
  catch_stop_signals();
  const checkpoint::History history(run, name);
  const std::int64_t step = parsed.has("step") ? wanted : history.steps().back();
  std::filesystem::path to = given;
  if (to.empty()) {
    to = metrics::picture_path(
        run, is_over_time ? name + "-over-time" : name,
        is_animation || is_over_time || step == checkpoint::History::unknown_step ? std::nullopt : std::optional(step),
        extension);
    if (metrics::is_of_a_run(run)) {
      files::create_folders(to.parent_path(), "the folder of pictures");
    } else {
      to = to.filename();
    }
  }
  if (!given.empty() || !metrics::is_of_a_run(run)) {
    require_new(parsed, to);  // a picture in the run's own folder is replaced, because it is drawn from saved states
  }
  if (is_animation) {
    report::draw_animation(history, settings, seconds, to);
  } else if (is_over_time) {
    report::draw_over_time(history, settings, to);
  } else {
    report::draw_step(history, step, settings, to);
  }
  fmt::print("{}\n", printable(files::human_path(to)));
  return 0;
}

const RegisterCommand picture_command({.name = "picture",
                                       .arguments = "RUN FIELD",
                                       .help = "draw a field of one or two dimensions that a run has saved",
                                       .run = picture});

}  // namespace
}  // namespace shardrun::cli
