#include "core/job/output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/schema.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

constexpr std::string_view time_placeholder = "{time}";

/// The offset in `path`, the output folder, at which the part begins that the job file gives. What stands before it
/// comes from `folder`, to which `text`, the value in the job file, is relative. If `text` is absolute and begins with
/// `folder`, as in a run's own job.ini, the offset is behind `folder`, too.
std::size_t begin_of_given(const std::filesystem::path& path, const std::filesystem::path& text,
                           const std::filesystem::path& folder) {
  const std::string& whole = path.native();
  if (text.is_absolute()) {
    const std::string above = (folder / "").string();
    return whole.starts_with(above) ? above.size() : 0;
  }
  if (path == folder / text) {
    return whole.size() - text.native().size();
  }
  // Each ".." at the beginning has removed a part of the folder.
  std::filesystem::path rest;
  for (const std::filesystem::path& part : text.lexically_normal()) {
    if (part != "." && part != "..") {
      rest /= part;
    }
  }
  return whole.size() - std::min(whole.size(), rest.native().size());
}

}  // namespace

void choose_output(const RawJob& raw, Job& job) {
  if (job.is_given("job", "output")) {
    job.output_given = begin_of_given(job.output, raw.find("job")->find("output")->value, raw.working_folder);
    return;
  }
  if (job.name == "." || job.name == "..") {
    refuse_at(job.file, "no folder of results can be named after this file; set [job] output");
  }
  const OptionSpec spec = {.name = "output", .type = OptionType::path};
  const SettingPlace place = {job.file + " (default)", setting_name("job", "output")};
  job.output = std::get<std::string>(convert(spec, "runs/" + job.name, place, raw.working_folder));
  job.output_given = job.output.native().size();
}

void check_output(const Job& job) {
  const std::string& output = job.output.native();
  for (std::size_t open = output.find('{', job.output_given); open != std::string::npos;
       open = output.find('{', open + 1)) {
    const std::size_t close = output.find('}', open);
    if (close == std::string::npos) {
      return;
    }
    if (const std::string name = output.substr(open, close + 1 - open); name != time_placeholder) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: [job] output has the placeholder {}, which nothing fills in; there is "
                              "{} (when the run begins, UTC, as 20261122-141503)",
                              job.where("job", "output"), name, time_placeholder));
    }
  }
}

void require_own_checkpoints(const Job& job) {
  if (job.checkpoints.resume == "auto" && job.checkpoints.folder.empty() && has_placeholder(job)) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: [checkpoint] resume = auto: [job] output has {}, so each run has a new folder, without "
                    "checkpoints: set [checkpoint] folder, or name the folder of the run to go on from "
                    "(--resume=FOLDER)",
                    job.where("checkpoint", "resume"), time_placeholder));
  }
}

bool has_placeholder(const Job& job) {
  return job.output.native().find(time_placeholder, job.output_given) != std::string::npos;
}

std::filesystem::path resolved_output(const Job& job, std::chrono::system_clock::time_point time) {
  const std::string text = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
  std::string output = job.output.native();
  for (std::size_t at = output.find(time_placeholder, job.output_given); at != std::string::npos;
       at = output.find(time_placeholder, at)) {
    output.replace(at, time_placeholder.size(), text);
  }
  return output;
}

}  // namespace shardrun::job
