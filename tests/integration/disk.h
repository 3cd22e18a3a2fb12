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
  std::string second;      ///< of rename and exchange
  std::size_t number = 0;  ///< where a write begins, or the file's new length
  std::string data;        ///< of a write

  bool operator==(const DiskOperation&) const = default;
};

/// What happens once to an operation of a job. `what` is as fixtures/disk_layer.cpp has it.
struct DiskFault {
  std::string operation;  ///< "write run/metrics.jsonl 1": the first of this name on this path
  std::string what;
};

/// A job whose operations on the disk are logged, and one of which fails.
class DiskJob {
 public:
  explicit DiskJob(std::vector<std::string> settings) : settings_(std::move(settings)) {}

  [[nodiscard]] Ended run(const std::optional<DiskFault>& fault = {},
                          const std::function<void(pid_t process, std::string_view out)>& watch = {}) const;
  /// Runs it; when it comes to the operation, which waits meanwhile, does something to it.
  [[nodiscard]] Ended run_and_hold(const std::string& operation, const std::function<void(pid_t process)>& act) const;
  /// Runs it without the layer.
  [[nodiscard]] Ended resume() const;

  [[nodiscard]] std::vector<DiskOperation> log() const;
  /// Whether the fault has happened.
  [[nodiscard]] bool was_met() const { return std::filesystem::exists(path() / "mark"); }
  /// Lets an operation go on that is held.
  void let_go() const { write_file(path() / "mark.go", ""); }

  [[nodiscard]] const JobFolder& folder() const { return job_; }
  [[nodiscard]] const std::filesystem::path& path() const { return job_.path(); }
  [[nodiscard]] std::filesystem::path checkpoints() const { return path() / "run/checkpoints"; }

 private:
  JobFolder job_;
  std::vector<std::string> settings_;
};

/// The step of the newest checkpoint in a folder; -1 if there is none. CHECKs that each folder that has a checkpoint's
/// name is whole: all its bytes are those that the manifest tells of.
[[nodiscard]] std::int64_t newest_whole(const std::filesystem::path& folder);

/// What is in a folder beside complete checkpoints.
[[nodiscard]] std::vector<std::string> rubbish_in(const std::filesystem::path& folder);

/// An operation of a save.
struct SaveOperation {
  std::string name;            ///< as a fault names it
  bool removes_older = false;  ///< the checkpoint is complete already
};

/// The operations of one save, in order.
[[nodiscard]] std::vector<SaveOperation> operations_of_save(const std::vector<DiskOperation>& log, std::int64_t step);

/// Which of the changes that nobody has made durable are on the disk after a power cut.
enum class PowerCut {
  none_kept,      ///< neither data nor names without fsync
  names_kept,     ///< all names, and only the data of files with fsync; the rest of them are zeros
  removals_kept,  ///< of names only that they were removed
  all_kept
};

/// A disk as the operations of a log leave it. Knows what is durable.
class SimulatedDisk {
 public:
  SimulatedDisk();
  ~SimulatedDisk();

  void apply(const DiskOperation& operation);
  /// Writes a folder of it as a power cut would leave it. Nothing if it is not there.
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
