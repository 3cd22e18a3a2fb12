#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/program.h"

namespace shardrun::test {

/// An operation that a job made on its disk, in the log of fixtures/disk_layer.cpp. Paths are relative to the job's
/// folder, which is ".".
struct DiskOperation {
  std::string name;  ///< create, write, fallocate, truncate, fsync, rename, exchange, mkdir, remove
  std::string path;
  std::string second;      ///< the other path of rename and exchange
  std::size_t number = 0;  ///< where a write begins, or the file's new length
  std::string data;        ///< the data of a write

  bool operator==(const DiskOperation&) const = default;
};

/// A fault that happens once, at an operation of a job. `what`: see fixtures/disk_layer.cpp.
struct DiskFault {
  std::string operation;  ///< "write run/metrics.jsonl 1": the first of this name on this path
  std::string what;
};

/// A job whose disk operations are logged. One of them can be made to fail.
class DiskJob {
 public:
  explicit DiskJob(std::vector<std::string> settings) : settings_(std::move(settings)) {}

  [[nodiscard]] Ended run(const std::optional<DiskFault>& fault = {},
                          const std::function<void(pid_t process, std::string_view out)>& watch = {}) const;
  /// Runs the job, holds the given operation, and calls `act` with its process meanwhile.
  [[nodiscard]] Ended run_and_hold(const std::string& operation, const std::function<void(pid_t process)>& act) const;
  /// Runs the job without the library that logs.
  [[nodiscard]] Ended resume() const;

  [[nodiscard]] std::vector<DiskOperation> log() const;
  /// Whether the fault has happened.
  [[nodiscard]] bool was_met() const { return std::filesystem::exists(path() / "mark"); }
  /// Lets a held operation go on.
  void let_go() const { write_file(path() / "mark.go", ""); }

  [[nodiscard]] const JobFolder& folder() const { return job_; }
  [[nodiscard]] const std::filesystem::path& path() const { return job_.path(); }
  [[nodiscard]] std::filesystem::path checkpoints() const { return path() / "run/checkpoints"; }

 private:
  JobFolder job_;
  std::vector<std::string> settings_;
};

/// The step of the newest checkpoint in a folder; -1 if there is none. CHECKs that each folder with a checkpoint's name
/// is complete, with the bytes that its manifest describes.
[[nodiscard]] std::int64_t newest_whole(const std::filesystem::path& folder);

/// The files and folders that are not complete checkpoints.
[[nodiscard]] std::vector<std::string> rubbish_in(const std::filesystem::path& folder);

/// An operation of a save.
struct SaveOperation {
  std::string name;            ///< the name that a fault has for it
  bool removes_older = false;  ///< it removes an older checkpoint: the new one is complete already
};

/// The operations of one save, in order.
[[nodiscard]] std::vector<SaveOperation> operations_of_save(const std::vector<DiskOperation>& log, std::int64_t step);

/// Which changes that were not made durable are on the disk after a power cut.
enum class PowerCut {
  none_kept,      ///< neither data nor names without fsync
  names_kept,     ///< all names, and only the data of files with fsync; the rest is zeros
  removals_kept,  ///< of the changes of names, only removals
  all_kept
};

/// A disk as the operations of a log leave it. Knows what is durable.
class SimulatedDisk {
 public:
  SimulatedDisk();
  ~SimulatedDisk();

  void apply(const DiskOperation& operation);
  /// Writes one of the disk's folders to `to`, as a power cut would leave it. Writes nothing if there is no
  /// such folder.
  void write(const std::string& folder, PowerCut cut, const std::filesystem::path& to) const;

 private:
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  [[nodiscard]] std::pair<Node*, std::string> parent_of(const std::string& path) const;
  [[nodiscard]] Node* at(const std::string& path) const;
  static const Names& names_after(const Node& folder, PowerCut cut);

  std::unique_ptr<Node> root_;
};

}  // namespace shardrun::test
