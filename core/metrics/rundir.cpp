#include "core/metrics/rundir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/metrics/human.h"

namespace shardrun::metrics {
namespace {

void create_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    throw files::system_error("create the output folder", folder, failed.value());
  }
}

std::string this_process() { return fmt::format("process {} on {}", ::getpid(), host_name()); }

/// What the holder wrote into the lock; it may just be about to.
std::string holder(const files::FileDescriptor& lock) {
  std::array<char, 512> text{};
  const ssize_t bytes = ::pread(lock.get(), text.data(), text.size(), 0);
  return bytes > 0 ? std::string(text.data(), static_cast<std::size_t>(bytes)) : "a process that just started";
}

std::filesystem::path lock_path(const std::filesystem::path& output) { return output / ".lock"; }

std::filesystem::path trace_folder(const std::filesystem::path& output) { return output / "trace"; }

files::FileDescriptor take_lock(const std::filesystem::path& output) {
  const std::filesystem::path path = lock_path(output);
  files::FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock.is_open()) {
    throw files::system_error("open the lock", path, errno);
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      throw files::system_error("lock", path, errno);
    }
    throw Error(ErrorCode::job,
                fmt::format("another run writes to '{}': {}; wait for its end, stop it, or give this run "
                            "another folder ([job] output)",
                            human_path(output), holder(lock)));
  }
  if (::ftruncate(lock.get(), 0) != 0) {
    throw files::system_error("empty", path, errno);
  }
  const std::string text = this_process();
  files::write_all(lock, std::as_bytes(std::span(text)), path);
  return lock;
}

void remove_file(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::remove(path, failed);
  if (failed) {
    throw files::system_error("remove", path, failed.value());
  }
}

bool is_of_rank(const std::filesystem::path& path, std::string_view extension) {
  return path.filename().native().starts_with("rank-") && path.extension() == extension;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  const bool found = text.starts_with(prefix);
  text.remove_prefix(found ? prefix.size() : 0);
  return found;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  const bool found = text.ends_with(suffix);
  text.remove_suffix(found ? suffix.size() : 0);
  return found;
}

/// Of state-000100.safetensors 100.
std::optional<std::int64_t> step_of_state(std::string_view name) {
  std::int64_t step = 0;
  if (!take_prefix(name, "state-") || !take_suffix(name, ".safetensors") || name.size() < 6) {
    return std::nullopt;
  }
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), step);
  return failed == std::errc() && end == name.data() + name.size() && step >= 0 ? std::optional(step) : std::nullopt;
}

/// Those that `kept` does not keep.
void remove_states(const std::filesystem::path& folder, const Kept& kept) {
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(folder, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::optional<std::int64_t> step = step_of_state(entry->path().filename().native());
    std::error_code none;
    if (step && *step > kept.step && !std::filesystem::equivalent(entry->path(), kept.file, none)) {
      remove_file(entry->path());
    }
  }
  if (failed) {
    throw files::system_error("list", folder, failed.value());
  }
}

/// What the summary of the run that was here says of it; where there is none, that there was one.
std::string describe_older(const std::filesystem::path& output) {
  std::error_code none;
  if (!std::filesystem::exists(summary_path(output), none)) {
    return std::filesystem::exists(metrics_path(output), none)
               ? fmt::format("replaces the run in {}, which did not come to its end", human_path(output))
               : "";
  }
  std::string text = fmt::format("replaces the run in {}", human_path(output));
  try {
    std::ifstream file(summary_path(output));
    const boost::json::value parsed = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    const boost::json::object& summary = parsed.as_object();
    text += fmt::format(" ({} after {}, {})", std::string(summary.at("status").as_string()),
                        counted(summary.at("steps").to_number<std::int64_t>(), "step"),
                        std::string(summary.at("ended").as_string()));
  } catch (const std::exception&) {
    // Another version's, or damaged: it is replaced all the same.
  }
  return text;
}

/// Where there is the folder.
void remove_of_ranks(const std::filesystem::path& folder, std::string_view extension) {
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(folder, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (is_of_rank(entry->path(), extension)) {
      remove_file(entry->path());
    }
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw files::system_error("list", folder, failed.value());
  }
}

bool take_rank(std::string_view& name) {
  std::string_view rest = name;
  while (!rest.empty() && rest.back() >= '0' && rest.back() <= '9') {
    rest.remove_suffix(1);
  }
  const bool found = rest.size() < name.size() && take_suffix(rest, ".rank-");
  name = found ? rest : name;
  return found;
}

constexpr std::array<std::string_view, 6> replaced_files = {"job.ini",      "sample.txt", "state.safetensors",
                                                            "summary.json", "trace.json", "weights.safetensors"};

bool is_replaced_file(std::string_view name) {
  return step_of_state(name) || std::ranges::find(replaced_files, name) != replaced_files.end();
}

bool is_result(std::string_view name) { return name == "metrics.jsonl" || is_replaced_file(name); }

/// `.NAME.tmp`, `NAME.rank-3` and `.NAME.rank-3.tmp`, where a run writes NAME; `.rank-3.json.tmp` of a trace.
bool is_unfinished(std::string_view name) {
  const bool is_temporary = name.starts_with('.') && take_suffix(name, ".tmp") && take_prefix(name, ".");
  if (is_temporary && name.starts_with("rank-") && name.ends_with(".json")) {
    return true;
  }
  const bool is_part = take_rank(name);
  return (is_temporary || is_part) && is_replaced_file(name);
}

}  // namespace

std::filesystem::path metrics_path(const std::filesystem::path& output) { return output / "metrics.jsonl"; }

std::filesystem::path summary_path(const std::filesystem::path& output) { return output / "summary.json"; }

std::filesystem::path log_path(const std::filesystem::path& output, int rank) {
  return output / "log" / fmt::format("rank-{}.log", rank);
}

std::filesystem::path job_path(const std::filesystem::path& output) { return output / "job.ini"; }

std::filesystem::path sample_path(const std::filesystem::path& output) { return output / "sample.txt"; }

std::filesystem::path weights_path(const std::filesystem::path& output) { return output / "weights.safetensors"; }

std::filesystem::path state_path(const std::filesystem::path& output) { return output / "state.safetensors"; }

std::filesystem::path state_path(const std::filesystem::path& output, std::int64_t step) {
  return output / fmt::format("state-{:06}.safetensors", step);
}

std::string host_name() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "?";
}

std::filesystem::path trace_path(const std::filesystem::path& output) { return output / "trace.json"; }

std::filesystem::path trace_path(const std::filesystem::path& output, int rank) {
  return trace_folder(output) / fmt::format("rank-{}.json", rank);
}

std::filesystem::path flight_folder(const std::filesystem::path& output) { return output / "flight"; }

std::filesystem::path part_path(const std::filesystem::path& path, std::int64_t rank) {
  return path.string() + fmt::format(".rank-{}", rank);
}

bool is_of_a_run(const std::filesystem::path& output) {
  std::error_code none;
  return std::filesystem::exists(lock_path(output), none);
}

std::filesystem::path foreign_result(const std::filesystem::path& output, const std::filesystem::path& except) {
  std::filesystem::path found;
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(output, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    std::error_code none;
    if (is_result(entry->path().filename().native()) &&
        (except.empty() || !std::filesystem::equivalent(entry->path(), except, none)) &&
        (found.empty() || entry->path() < found)) {
      found = entry->path();
    }
  }
  // A run makes its lock before its files: in this order, files of a run that begins now are not taken for others.
  return found.empty() || is_of_a_run(output) ? std::filesystem::path() : found;
}

bool is_written_by_runs(const std::filesystem::path& file, const std::filesystem::path& output) {
  const auto lies_in = [](const std::filesystem::path& path, const std::filesystem::path& folder) {
    std::error_code none;
    return std::filesystem::equivalent(path.parent_path(), folder, none);
  };
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::canonical(file, failed);
  for (const std::filesystem::path& path : {file, target}) {
    const std::string name = path.filename().string();
    if (lies_in(path, output) && (is_result(name) || is_unfinished(name) || name == lock_path(output).filename())) {
      return true;
    }
    if ((lies_in(path, output / "log") && is_of_rank(path, ".log")) ||
        (lies_in(path, trace_folder(output)) && (is_of_rank(path, ".json") || is_unfinished(name))) ||
        (lies_in(path, flight_folder(output)) && (is_of_rank(path, ".jsonl") || is_of_rank(path, ".record")))) {
      return true;
    }
  }
  return false;
}

bool has_name_of_state(const std::filesystem::path& file) {
  return file.filename() == state_path({}) || step_of_state(file.filename().native());
}

RunDirectory::RunDirectory(std::filesystem::path output)
    : output_(std::move(output)), was_of_a_run_(is_of_a_run(output_)) {
  create_folder(output_ / "log");
  lock_ = take_lock(output_);
}

void RunDirectory::remove_unfinished() const noexcept {
  for (const std::filesystem::path& folder : {output_, trace_folder(output_)}) {
    std::error_code failed;
    for (auto entry = std::filesystem::directory_iterator(folder, failed);
         !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      if (is_unfinished(entry->path().filename().native())) {
        std::error_code ignored;
        std::filesystem::remove(entry->path(), ignored);
      }
    }
  }
}

std::string RunDirectory::remove_older_run(const Kept& kept) const {
  if (!was_of_a_run_) {
    return "";
  }
  std::string older = describe_older(output_);
  remove_unfinished();
  remove_states(output_, kept);
  remove_file(sample_path(output_));
  remove_file(summary_path(output_));
  remove_file(metrics_path(output_));
  remove_file(trace_path(output_));
  remove_of_ranks(output_ / "log", ".log");
  remove_of_ranks(trace_folder(output_), ".json");
  remove_of_ranks(flight_folder(output_), ".jsonl");
  remove_of_ranks(flight_folder(output_), ".record");
  for (const std::filesystem::path& folder : {trace_folder(output_), flight_folder(output_)}) {
    std::error_code holds_more;
    std::filesystem::remove(folder, holds_more);
  }
  return older;
}

}  // namespace shardrun::metrics
