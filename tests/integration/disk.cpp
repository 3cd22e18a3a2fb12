#include "tests/integration/disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "core/checkpoint/folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "tests/integration/processes.h"
#include "tests/support/catch.h"

namespace shardrun::test {

Ended DiskJob::run(const std::optional<DiskFault>& fault,
                   const std::function<void(pid_t process, std::string_view out)>& watch) const {
  std::string script = fmt::format("exec {} TEST_DISK_BELOW='{}' TEST_DISK_LOG='{}' TEST_DISK_MARK='{}' ",
                                   preloading(SHARDRUN_DISK_LAYER), path().native(), (path() / "disk.log").native(),
                                   (path() / "mark").native());
  if (fault) {
    script += fmt::format("TEST_DISK_FAULT='{} {}' ", fault->operation, fault->what);
  }
  script += "\"$0\" job.ini";
  for (const std::string& word : with_settings({}, settings_)) {
    script += fmt::format(" '{}'", word);
  }
  return run_script(path(), script, watch);
}

Ended DiskJob::run_and_hold(const std::string& operation, const std::function<void(pid_t process)>& act) const {
  std::future<void> acting;
  Ended ended = run(DiskFault{operation, "hold"}, [&](pid_t process, std::string_view) {
    if (!acting.valid()) {
      acting = beside(process, [&, process] {
        while (!was_met() && !ends_within(process, 1)) {
        }
        act(process);
        let_go();
      });
    }
  });
  acting.get();
  return ended;
}

Ended DiskJob::resume() const { return run_program(path(), with_settings({"job.ini", "--resume"}, settings_)); }

std::vector<DiskOperation> DiskJob::log() const {
  std::istringstream text(read_file(path() / "disk.log"));
  std::vector<DiskOperation> operations;
  for (std::string line; std::getline(text, line);) {
    std::istringstream fields(line);
    DiskOperation operation;
    std::string number;
    std::string bytes;
    std::getline(fields, operation.name, '\t');
    std::getline(fields, operation.path, '\t');
    std::getline(fields, operation.second, '\t');
    std::getline(fields, number, '\t');
    std::getline(fields, bytes, '\t');
    operation.number = std::stoull(number);
    operation.data.resize(std::stoull(bytes));
    text.read(operation.data.data(), static_cast<std::streamsize>(operation.data.size()));
    operations.push_back(std::move(operation));
  }
  return operations;
}

std::int64_t newest_whole(const std::filesystem::path& folder) {
  std::int64_t newest = -1;
  for (const checkpoint::Listed& each : checkpoint::list_checkpoints(folder)) {
    INFO(each.path);
    const checkpoint::OpenCheckpoint opened(each.path);
    for (std::size_t file = 0; file < opened.manifest().files.size(); ++file) {
      CHECK_NOTHROW(opened.check_file(file));
    }
    CHECK(opened.manifest().step == each.step);
    newest = each.step;
  }
  return newest;
}

std::vector<std::string> rubbish_in(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("step-")) {
      found.push_back(entry.path().filename());
    }
  }
  return found;
}

std::vector<SaveOperation> operations_of_save(const std::vector<DiskOperation>& log, std::int64_t step) {
  const std::string begin = fmt::format("run/checkpoints/.step-{:06}.tmp", step);
  std::map<std::string, int> seen;
  std::vector<SaveOperation> found;
  bool is_inside = false;
  bool removes_older = false;
  for (const DiskOperation& operation : log) {
    const std::string key = operation.name + " " + operation.path;
    const int number = ++seen[key];
    if (operation.name == "mkdir" && operation.path.starts_with("run/checkpoints/.step-")) {
      is_inside = operation.path == begin;
    }
    removes_older = is_inside && (removes_older || operation.second.ends_with(".removed"));
    if (is_inside && operation.path.starts_with("run/checkpoints")) {
      found.push_back({fmt::format("{} {}", key, number), removes_older});
    }
  }
  return found;
}

struct SimulatedDisk::Node {
  bool is_folder = false;
  std::string data;
  std::string durable_data;
  Names names;
  Names durable_names;
  Names names_less_removed;  ///< those that are durable, without those that were removed since
};

SimulatedDisk::SimulatedDisk() : root_(std::make_unique<Node>(Node{.is_folder = true})) {}

SimulatedDisk::~SimulatedDisk() = default;

std::pair<SimulatedDisk::Node*, std::string> SimulatedDisk::parent_of(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return {root_.get(), path};
  }
  return {at(path.substr(0, slash)), path.substr(slash + 1)};
}

SimulatedDisk::Node* SimulatedDisk::at(const std::string& path) const {
  Node* node = root_.get();
  std::istringstream names(path);
  for (std::string name; node != nullptr && std::getline(names, name, '/');) {
    const auto found = node->names.find(name);
    node = name == "." ? node : found == node->names.end() ? nullptr : found->second.get();
  }
  return node;
}

void SimulatedDisk::apply(const DiskOperation& operation) {
  const auto [folder, name] = parent_of(operation.path);
  if (folder == nullptr) {
    throw std::runtime_error("the log has no folder of " + operation.path);
  }
  if (operation.name == "create" || operation.name == "mkdir") {
    if (!folder->names.contains(name)) {
      folder->names[name] = std::make_shared<Node>(Node{.is_folder = operation.name == "mkdir"});
    }
  } else if (operation.name == "remove") {
    folder->names.erase(name);
    folder->names_less_removed.erase(name);
  } else if (operation.name == "rename") {
    const auto [to, new_name] = parent_of(operation.second);
    to->names[new_name] = folder->names.at(name);
    folder->names.erase(name);
  } else if (operation.name == "exchange") {
    const auto [to, new_name] = parent_of(operation.second);
    std::swap(to->names.at(new_name), folder->names.at(name));
  } else {
    Node* const node = at(operation.path);
    if (node == nullptr) {  // a file that has lost its name
      return;
    }
    if (operation.name == "fsync") {
      node->durable_data = node->data;
      node->durable_names = node->names_less_removed = node->names;
    } else if (operation.name == "truncate") {
      node->data.resize(operation.number);
    } else {
      node->data.resize(std::max(node->data.size(), operation.number + operation.data.size()));
      node->data.replace(operation.number, operation.data.size(), operation.data);
    }
  }
}

const SimulatedDisk::Names& SimulatedDisk::names_after(const Node& folder, PowerCut cut) {
  switch (cut) {
    case PowerCut::none_kept: return folder.durable_names;
    case PowerCut::removals_kept: return folder.names_less_removed;
    default: return folder.names;
  }
}

void SimulatedDisk::write(const std::string& folder, PowerCut cut, const std::filesystem::path& to) const {
  const Node* node = root_.get();
  std::istringstream names(folder);
  for (std::string name; std::getline(names, name, '/');) {
    const Names& there = names_after(*node, cut);
    const auto found = there.find(name);
    if (found == there.end()) {
      return;
    }
    node = found->second.get();
  }
  std::vector<std::pair<const Node*, std::filesystem::path>> rest = {{node, to}};
  while (!rest.empty()) {
    const auto [each, path] = rest.back();
    rest.pop_back();
    if (!each->is_folder) {
      std::string data = cut == PowerCut::all_kept ? each->data : each->durable_data;
      data.resize(cut == PowerCut::none_kept ? data.size() : each->data.size());
      write_file(path, data);
      continue;
    }
    std::filesystem::create_directories(path);
    for (const auto& [name, child] : names_after(*each, cut)) {
      rest.emplace_back(child.get(), path / name);
    }
  }
}

}  // namespace shardrun::test
