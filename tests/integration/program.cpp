#include "tests/integration/program.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "core/files/descriptor.h"
#include "plugins/loader/transport.h"
#include "tests/support/text_job.h"

namespace shardrun::test {
namespace {

[[noreturn]] void become(const char* program, const std::filesystem::path& folder,
                         const std::vector<std::string>& words, int out, int err) {
  std::vector<char*> arguments = {const_cast<char*>(program)};
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const bool ready = chdir(folder.c_str()) == 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0;
  unsetenv("SHARDRUN_PLUGIN_PATH");
  if (ready) {
    std::signal(SIGHUP, SIG_DFL);  // nohup ignores it, and a program that starts with it ignored goes on doing so
    execv(program, arguments.data());
  }
  _exit(127);
}

std::string read_all(std::FILE* file) {
  std::string text;
  std::array<char, 4096> block = {};
  std::rewind(file);
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file)) {
    text.append(block.data(), count);
  }
  return text;
}

int status_of_end(pid_t process) {
  int status = 0;
  waitpid(process, &status, 0);
  return status;
}

/// Reads all that the process writes until it ends. If `watch` throws, ends the process.
Ended await_end(pid_t process, int out, const std::function<void(pid_t, std::string_view)>& watch) {
  const files::FileDescriptor open(out);
  Ended ended;
  std::array<char, 4096> block = {};
  try {
    if (watch) {
      watch(process, "");
    }
    for (ssize_t count = 0; (count = read(open.get(), block.data(), block.size())) > 0;) {
      ended.out.append(block.data(), static_cast<std::size_t>(count));
      if (watch) {
        watch(process, ended.out);
      }
    }
  } catch (...) {
    kill(process, SIGKILL);
    status_of_end(process);
    throw;
  }
  const int status = status_of_end(process);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

Ended run(const char* program, const std::filesystem::path& folder, const std::vector<std::string>& words,
          const std::function<void(pid_t, std::string_view)>& watch) {
  std::array<int, 2> out = {};
  std::FILE* err = std::tmpfile();
  if (err == nullptr || pipe(out.data()) != 0) {
    throw std::runtime_error("no pipe");
  }
  const pid_t process = fork();
  if (process == 0) {
    close(out[0]);
    become(program, folder, words, out[1], fileno(err));
  }
  close(out[1]);
  Ended ended = await_end(process, out[0], watch);
  ended.err = read_all(err);
  std::fclose(err);
  return ended;
}

bool moves_by_itself(const std::filesystem::path& folder, const std::string& name) {
  const plugins::Transport transport = plugins::Transport::load({folder}, name);
  const bool wraps = std::any_of(transport.options().begin(), transport.options().end(),
                                 [](const OptionSpec& option) { return option.names_transport; });
  return !wraps && transport.props().moves(SR_MEMORY_HOST);
}

}  // namespace

Ended run_program(const std::filesystem::path& folder, const std::vector<std::string>& words,
                  const std::function<void(pid_t, std::string_view)>& watch) {
  return run(SHARDRUN_PROGRAM, folder, words, watch);
}

Ended run_unmapped(const std::filesystem::path& folder, const std::vector<std::string>& words) {
  return run(SHARDRUN_UNMAPPED_PROGRAM, folder, words, {});
}

Ended run_on_terminal(const std::filesystem::path& folder, const std::vector<std::string>& words,
                      const std::function<void(pid_t, std::string_view)>& watch) {
  const winsize size = {.ws_row = 40, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t process = forkpty(&terminal, nullptr, nullptr, &size);
  if (process == 0) {
    setenv("TERM", "xterm", 1);
    become(SHARDRUN_PROGRAM, folder, words, STDOUT_FILENO, STDERR_FILENO);
  }
  if (process < 0) {
    throw std::runtime_error("no terminal");
  }
  return await_end(process, terminal, watch);
}

Ended run_script(const std::filesystem::path& folder, const std::string& script,
                 const std::function<void(pid_t, std::string_view)>& watch) {
  return run("/bin/sh", folder, {"-c", script, SHARDRUN_PROGRAM}, watch);
}

/// Words before a program. AddressSanitizer is told to accept that another library is loaded before it.
std::string preloading(const std::string& path) {
  return "env LD_PRELOAD='" + path + "' ASAN_OPTIONS=\"$ASAN_OPTIONS:verify_asan_link_order=0\" ";
}

std::vector<std::string> installed(const std::string& kind) {
  std::vector<std::string> names = all_installed(kind);
  std::erase(names, "mpi");
  return names;
}

std::vector<std::string> all_installed(const std::string& kind) {
  const std::filesystem::path folder = std::filesystem::path(SHARDRUN_PROGRAM).parent_path() / "lib/shardrun/v1";
  const std::string prefix = "shardrun_" + kind + "_";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with(prefix) && (kind != "transport" || moves_by_itself(folder, name.substr(prefix.size())))) {
      names.push_back(name.substr(prefix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool ends_soon(pid_t process) {
  const auto latest = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (kill(process, 0) == 0) {
    if (std::chrono::steady_clock::now() > latest) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<std::string> computed_from(const std::filesystem::path& output, std::int64_t first) {
  std::vector<std::string> lines;
  for (const boost::json::object& line : read_json_lines(output / "metrics.jsonl")) {
    if (line.at("step").to_number<std::int64_t>() < first) {
      continue;
    }
    std::string text;
    for (const char* key : {"step", "loss", "val_loss", "grad_norm", "lr"}) {
      text += line.contains(key) ? boost::json::serialize(line.at(key)) + " " : "";
    }
    lines.push_back(text);
  }
  return lines;
}

std::vector<std::string> with_settings(std::vector<std::string> words, const std::vector<std::string>& overrides) {
  for (const std::string& setting : overrides) {
    words.insert(words.end(), {"--set", setting});
  }
  return words;
}

JobFolder::JobFolder() {
  write_file(folder_ / "corpus.txt", sentences(4000));
  write_file(folder_ / "job.ini", text_job);
}

Ended JobFolder::run(const std::vector<std::string>& overrides) const {
  return run_program(path(), with_settings({"job.ini"}, overrides));
}

boost::json::object JobFolder::summary() const { return read_json(folder_ / "run/summary.json"); }

std::vector<boost::json::object> JobFolder::metrics() const { return read_json_lines(folder_ / "run/metrics.jsonl"); }

std::vector<double> JobFolder::losses() const {
  std::vector<double> losses;
  for (const boost::json::object& line : metrics()) {
    losses.push_back(line.at("loss").to_number<double>());
  }
  return losses;
}

boost::json::object read_json(const std::filesystem::path& path) {
  return boost::json::parse(read_file(path)).as_object();
}

std::vector<boost::json::object> read_json_lines(const std::filesystem::path& path) {
  std::vector<boost::json::object> objects;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    objects.push_back(boost::json::parse(line).as_object());
  }
  return objects;
}

}  // namespace shardrun::test
