#include "core/metrics/locked_run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/process.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"
#include "core/files/trust.h"

namespace shardrun::metrics {
namespace {

/// The content of a run's lock: its process, for people, and a random number, because process numbers are reused.
std::string new_owner() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    throw Error(ErrorCode::io, "cannot get a random number from the system");
  }
  return fmt::format("process {} on {}\nrun {:016x}\n", ::getpid(), host_name(), random);
}

[[noreturn]] void refuse_held(const std::filesystem::path& output, const std::string& owner) {
  throw Error(ErrorCode::job, fmt::format("another run writes to '{}': {}; wait for its end, stop it, or give this run "
                                          "another folder ([job] output)",
                                          files::human_path(output), process_of(owner)));
}

/// Locks an open file or folder. Tries for 200 ms, because another process may be in is_held(). Returns whether it is
/// locked; if not, errno says why.
bool lock_file(const files::FileDescriptor& file) {
  for (int tries = 0; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK || tries == 100) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// Opens and locks the folder. Not every file system can lock a folder, so the lock file in it is locked, too.
files::Folder lock_folder(const std::filesystem::path& output) {
  files::create_folders(output, "the output folder", files::unwritable);
  files::Folder folder(output);
  if (!lock_file(folder.descriptor()) && errno == EWOULDBLOCK) {
    const files::FileDescriptor lock(::open(lock_path(folder.root()).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    refuse_held(output, lock.is_open() ? owner_in(lock) : "");
  }
  files::require_no_links_of_others(folder.root());
  return folder;
}

/// Locks the open folder. `output`: its path, for people.
files::FileDescriptor take_lock(const files::Folder& folder, const std::filesystem::path& output) {
  const std::filesystem::path path = lock_path(folder.root());
  files::FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock.is_open()) {
    throw files::unwritable("open the lock", path, errno);
  }
  if (!lock_file(lock)) {
    if (errno != EWOULDBLOCK) {
      throw files::system_error("lock", path, errno);
    }
    refuse_held(output, owner_in(lock));
  }
  if (::ftruncate(lock.get(), 0) != 0) {
    throw files::system_error("empty", path, errno);
  }
  const std::string text = new_owner();
  files::write_all(lock, std::as_bytes(std::span(text)), path);
  if (::fsync(lock.get()) != 0) {  // because ranks on other machines read it
    throw files::system_error("make durable", path, errno);
  }
  files::create_folders(folder.root() / "log", "the output folder");
  return lock;
}

void remove_file(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::remove(path, failed);
  if (failed) {
    throw files::system_error("remove", path, failed.value());
  }
}

void remove_states(const std::filesystem::path& folder, const Kept& kept) {
  std::error_code failed;
  for (const std::filesystem::path& state : old_states(folder, kept, failed)) {
    remove_file(state);
  }
  if (failed) {
    throw files::system_error("list", folder, failed.value());
  }
}

/// Describes the earlier run by its summary; without a summary, says only that there was a run.
std::string describe_older(const std::filesystem::path& output) {
  std::error_code none;
  if (!std::filesystem::exists(summary_path(output), none)) {
    return std::filesystem::exists(metrics_path(output), none)
               ? fmt::format("replaces the run in {}, which did not come to its end", files::human_path(output))
               : "";
  }
  std::string text = fmt::format("replaces the run in {}", files::human_path(output));
  try {
    std::ifstream file(summary_path(output));
    const boost::json::value parsed = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    const boost::json::object& summary = parsed.as_object();
    text += fmt::format(" ({} after {}, {})", std::string(summary.at("status").as_string()),
                        counted(summary.at("steps").to_number<std::int64_t>(), "step"),
                        std::string(summary.at("ended").as_string()));
  } catch (const std::exception&) {
    // The summary is another version's, or damaged: it is replaced anyway.
  }
  return text;
}

std::filesystem::path unfinished_earlier(const std::filesystem::path& root) { return root / ".earlier-run.tmp"; }

/// The files that runs have written in the folder, other than locks and unfinished files. Does not look at folders of
/// other names. Throws Error{io}.
std::vector<std::filesystem::path> files_of_run(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> files;
  std::error_code failed;
  const auto take = [&](const std::filesystem::directory_entry& entry) {
    std::error_code none;
    if (entry.is_regular_file(none) && !entry.path().filename().native().starts_with('.') &&
        is_written_by_runs(entry.path(), root)) {
      files.push_back(entry.path());
    }
  };
  const auto require_listed = [&](const std::filesystem::path& folder) {
    if (failed && failed != std::errc::no_such_file_or_directory) {
      throw files::system_error("list", folder, failed.value());
    }
  };
  for (const std::filesystem::path& folder : {root, root / "log", outputs_path(root), pictures_path(root),
                                              events_folder(root), trace_folder(root), flight_folder(root)}) {
    for (auto entry = std::filesystem::directory_iterator(folder, failed);
         !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      take(*entry);
    }
    require_listed(folder);
  }
  for (auto entry = std::filesystem::recursive_directory_iterator(attempts_path(root), failed);
       !failed && entry != std::filesystem::recursive_directory_iterator(); entry.increment(failed)) {
    take(*entry);
  }
  require_listed(attempts_path(root));
  return files;
}

/// Gives the files of the run in the folder second names in earlier_path(). Copies them where there can be no second
/// names. The run's files stay complete in one place, whenever the process is killed. Throws Error{io}.
void keep_earlier_run(const std::filesystem::path& root) {
  const std::filesystem::path unfinished = unfinished_earlier(root);
  std::error_code failed;
  std::filesystem::remove_all(unfinished, failed);
  for (const std::filesystem::path& file : files_of_run(root)) {
    const std::filesystem::path kept = unfinished / file.lexically_relative(root);
    files::create_folders(kept.parent_path(), "the folder of the earlier run");
    const std::filesystem::path target = std::filesystem::canonical(file, failed);  // of a link: the file itself
    if (!failed) {
      std::filesystem::create_hard_link(target, kept, failed);
    }
    if (failed && !std::filesystem::copy_file(file, kept, failed)) {
      const Error error = files::system_error("keep", file, failed.value());
      std::filesystem::remove_all(unfinished, failed);
      throw Error(error.code(), error.message() + "; with --replace nothing of the earlier run is kept");
    }
  }
  files::write_file_atomically(lock_path(unfinished), "");  // it is a run's folder wherever it is moved
  std::filesystem::rename(unfinished, earlier_path(root), failed);
  if (failed) {
    throw files::system_error("make", earlier_path(root), failed.value());
  }
  files::sync_folder(root);
}

/// Removes the lines of later steps, and an incomplete last line.
void keep_lines(const std::filesystem::path& path, const Kept& kept_lines) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    boost::system::error_code failed;
    const boost::json::value json = boost::json::parse(line, failed);
    const boost::json::object* const fields = failed ? nullptr : json.if_object();
    const boost::json::value* const of = fields == nullptr ? nullptr : fields->if_contains("step");
    const bool is_of_step = of != nullptr && of->is_int64() && of->as_int64() <= kept_lines.step;
    if (is_of_step) {
      kept += line + "\n";
    }
  }
  files::write_file_atomically(path, kept);
}

/// Removes those files of a folder for which `is_one` is true, if the folder exists.
template <typename IsOne>
void remove_those(const std::filesystem::path& folder, const IsOne& is_one) {
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(folder, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (is_one(entry->path())) {
      remove_file(entry->path());
    }
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw files::system_error("list", folder, failed.value());
  }
}

/// Removes the ranks' files in a folder, if the folder exists.
void remove_of_ranks(const std::filesystem::path& folder, std::string_view extension) {
  remove_those(folder, [&](const std::filesystem::path& path) { return is_of_rank(path, extension); });
}

void remove_attempts(const std::filesystem::path& output) {
  std::error_code failed;
  std::filesystem::remove_all(attempts_path(output), failed);
  if (failed) {
    throw files::system_error("remove", attempts_path(output), failed.value());
  }
}

/// The inode number of a file; nothing if there is no file. When a file replaces another, both exist for a moment, so
/// their numbers differ.
std::optional<ino_t> number_of(const std::filesystem::path& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0 ? std::optional(status.st_ino) : std::nullopt;
}

}  // namespace

const char* to_string(Saved saved) noexcept {
  switch (saved) {
    case Saved::none: return "none";
    case Saved::earlier: return "earlier";
    case Saved::fresh: return "new";
  }
  return "";
}

LockedRunFolder::LockedRunFolder(std::filesystem::path output)
    : output_(std::move(output)),
      locked_(lock_folder(output_)),
      was_of_a_run_(is_of_a_run(locked_.root())),
      lock_(take_lock(locked_, output_)),
      folder_(locked_.root(), output_) {
  for (const std::filesystem::path& result : {weights_path(root()), state_path(root())}) {
    if (const std::optional<ino_t> number = number_of(result)) {
      older_[result.filename().string()] = *number;
    }
  }
}

Saved LockedRunFolder::saved(const std::filesystem::path& name) const {
  const std::optional<ino_t> number = number_of(root() / name);
  const auto older = older_.find(name.string());
  return !number ? Saved::none : older != older_.end() && older->second == *number ? Saved::earlier : Saved::fresh;
}

void LockedRunFolder::remove_unfinished() const noexcept {
  if (!folder_.is_owned()) {
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(unfinished_earlier(root()), ignored);
  for (const std::filesystem::path& folder :
       {root(), trace_folder(root()), outputs_path(root()), pictures_path(root())}) {
    std::error_code failed;
    for (auto entry = std::filesystem::directory_iterator(folder, failed);
         !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      if (is_unfinished(entry->path().filename().native())) {
        std::filesystem::remove(entry->path(), ignored);
      }
    }
  }
}

std::string LockedRunFolder::remove_older_run(const Kept& kept) const {
  if (!was_of_a_run_) {
    return "";
  }
  std::string older = kept.metrics ? "" : describe_older(root());
  const bool keeps = keeps_earlier(root(), kept);
  if (keeps || (!kept.results && !kept.metrics)) {
    remove_earlier_run();
  }
  if (keeps) {
    keep_earlier_run(root());
  }
  if (!older.empty() && has_earlier_run(root())) {
    older += fmt::format("; {} is kept in {} until this run has finished", keeps ? "it" : "the one before",
                         files::human_path(earlier_path(root())));
  }
  if (!kept.metrics) {
    remove_attempts(root());
  }
  remove_files(kept);
  return older;
}

void LockedRunFolder::remove_earlier_run() const noexcept {
  std::error_code failed;
  if (has_earlier_run(root())) {
    // Under another name first: a process that is killed while it removes leaves no half of a run under this one.
    std::filesystem::remove_all(unfinished_earlier(root()), failed);
    std::filesystem::rename(earlier_path(root()), unfinished_earlier(root()), failed);
  }
  std::filesystem::remove_all(unfinished_earlier(root()), failed);
}

void LockedRunFolder::remove_files(const Kept& kept) const {
  remove_unfinished();
  remove_states(root(), kept);
  remove_file(sample_path(root()));
  remove_file(summary_path(root()));
  for (const std::filesystem::path& lines : {metrics_path(root()), ranks_path(root())}) {
    if (std::error_code none; kept.metrics && std::filesystem::exists(lines, none)) {
      keep_lines(lines, kept);
    } else {
      remove_file(lines);
    }
  }
  if (!kept.metrics) {
    remove_of_ranks(root() / "log", ".log");
    remove_those(events_folder(root()), is_of_events);  // with kept metrics, TensorBoard drops later events itself
  }
  remove_file(csv_path(root()));  // made again of the lines of metrics.jsonl
  remove_file(trace_path(root()));
  remove_of_ranks(trace_folder(root()), ".json");
  remove_of_ranks(flight_folder(root()), ".jsonl");
  remove_of_ranks(flight_folder(root()), ".record");
  for (const std::filesystem::path& folder : {events_folder(root()), trace_folder(root()), flight_folder(root()),
                                              outputs_path(root()), pictures_path(root())}) {
    std::error_code holds_more;
    std::filesystem::remove(folder, holds_more);
  }
}

bool is_held(const std::filesystem::path& output) {
  for (const std::filesystem::path& path : {output, lock_path(output)}) {
    const files::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.is_open() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return true;
    }
  }
  return false;
}

}  // namespace shardrun::metrics
