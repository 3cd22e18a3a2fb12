#include "core/run/earlier_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/checkpoint/saved_state.h"
#include "core/files/folder.h"
#include "core/files/mapped_file.h"
#include "core/job/raw.h"
#include "core/metrics/run_files.h"

namespace shardrun::run {
namespace {

constexpr std::string_view name_comment = "# the run of ";

std::string value_in(const job::RawJob& raw, std::string_view section, std::string_view key) {
  const job::RawSection* const found = raw.find(section);
  const job::RawSetting* const setting = found == nullptr ? nullptr : found->find(key);
  return setting == nullptr ? (key == "task" ? "train" : "none") : setting->value;
}

/// The parts of a text that text_of_run() wrote.
struct Parts {
  std::string_view name;  ///< name of the job file; "" if something else wrote the text
  std::string_view job;
};

Parts parts_of(std::string_view text) {
  if (!text.starts_with(name_comment)) {
    return {"", text};
  }
  const std::size_t end = std::min(text.find('\n'), text.size() - 1);
  return {text.substr(name_comment.size(), end - name_comment.size()), text.substr(end + 1)};
}

/// The difference as a text, "[data] text = a.txt, here b.txt"; "" if both texts are of the same job.
std::string difference(const std::string& older, const std::string& own) {
  const Parts before = parts_of(older);
  const Parts now = parts_of(own);
  if (before.job == now.job) {
    return "";
  }
  if (!before.name.empty() && before.name != now.name) {
    return fmt::format("of {}, here {}", before.name, now.name);
  }
  const job::RawJob raw_older = job::read_job_text(older, "job.ini");
  const job::RawJob raw_own = job::read_job_text(own, "job.ini");
  constexpr std::pair<const char*, const char*> identity[] = {
      {"job", "task"}, {"model", "name"}, {"data", "text"}, {"data", "tokens"}, {"data", "arrays"}};
  for (const auto& [section, key] : identity) {
    const std::string value_before = value_in(raw_older, section, key);
    const std::string value_now = value_in(raw_own, section, key);
    if (value_before != value_now) {
      return fmt::format("[{}] {} = {}, here {}", section, key, value_before, value_now);
    }
  }
  return "";
}

}  // namespace

std::string text_of_run(const job::Job& job) {
  return fmt::format("{}{}\n{}", name_comment, printable(std::filesystem::path(job.file).filename().string()),
                     job::canonical_text(job));
}

void require_same_job(const job::Job& job, const compile::Compiled& compiled) {
  if (checkpoint::kept_of(job, compiled.resumed.get()).step >= 0 || !metrics::is_of_a_run(job.output)) {
    return;
  }
  std::string found;
  try {
    found = difference(files::read_text_file(metrics::job_path(job.output), job::max_file_bytes), text_of_run(job));
  } catch (const Error&) {
    return;  // the run has not begun, or has no job that could be lost
  }
  if (!found.empty()) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] output: {} has a run of a different job ({}), which this run would replace: "
                            "choose another [job] output, or accept that with --replace",
                            job.where("job", "output"), files::human_path(job.output), found));
  }
}

}  // namespace shardrun::run
