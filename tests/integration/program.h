#pragma once

#include <sys/types.h>

#include <boost/json.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/depth.h"
#include "tests/support/temporary_folder.h"

namespace shardrun::test {

/// How a process ended, and what it wrote.
struct Ended {
  int code = 0;  ///< the exit code, or minus the signal that ended it
  std::string out;
  std::string err;
};

/// Runs the built `shardrun` in `folder`, without the environment's own plugins. `watch` is called with the process and
/// its standard output so far: when it has been started, and whenever there is more.
Ended run_program(const std::filesystem::path& folder, const std::vector<std::string>& words,
                  const std::function<void(pid_t process, std::string_view out)>& watch = {});

/// Runs the same program with the device `unmapped` of tests/support.
Ended run_unmapped(const std::filesystem::path& folder, const std::vector<std::string>& words);

/// Runs it with a terminal of 120 columns as all three streams. `out`: what was written to the terminal.
Ended run_on_terminal(const std::filesystem::path& folder, const std::vector<std::string>& words,
                      const std::function<void(pid_t process, std::string_view out)>& watch = {});

/// Runs a shell script in `folder`, in which `$0` is the built `shardrun`. `watch` is called as by run_program.
Ended run_script(const std::filesystem::path& folder, const std::string& script,
                 const std::function<void(pid_t process, std::string_view out)>& watch = {});

/// Words to put before a program in a script. The program then loads the library at `path` before all others.
[[nodiscard]] std::string preloading(const std::string& path);

/// installed(): the names of the plugins of a kind beside the program; but only those transports that move host memory
/// by themselves and need no launcher of their own. all_installed(): all names.
[[nodiscard]] std::vector<std::string> installed(const std::string& kind);
[[nodiscard]] std::vector<std::string> all_installed(const std::string& kind);

/// Waits until a process that is ending is gone. Returns false after a minute.
[[nodiscard]] bool ends_soon(pid_t process);

/// A folder with `corpus.txt` and `job.ini`, which trains a small transformer.
class JobFolder {
 public:
  JobFolder();

  /// Runs `shardrun job.ini` with some settings overridden.
  [[nodiscard]] Ended run(const std::vector<std::string>& overrides = {}) const;

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }
  [[nodiscard]] boost::json::object summary() const;
  /// The lines of metrics.jsonl.
  [[nodiscard]] std::vector<boost::json::object> metrics() const;
  /// The losses of metrics.jsonl.
  [[nodiscard]] std::vector<double> losses() const;

 private:
  TemporaryFolder folder_;
};

[[nodiscard]] boost::json::object read_json(const std::filesystem::path& path);
[[nodiscard]] std::vector<boost::json::object> read_json_lines(const std::filesystem::path& path);

/// The lines of a run's metrics.jsonl from step `first` on, without times.
[[nodiscard]] std::vector<std::string> computed_from(const std::filesystem::path& output, std::int64_t first);

/// Words for `--set` of each setting.
[[nodiscard]] std::vector<std::string> with_settings(std::vector<std::string> words,
                                                     const std::vector<std::string>& overrides);

}  // namespace shardrun::test
