#pragma once

#include <exception>
#include <optional>
#include <string>

namespace shardrun {

/// The kind of a failure. It decides the exit code.
enum class ErrorCode {
  usage,           ///< the command line
  job,             ///< the job file, or a combination that it asks for
  plugin,          ///< a plugin that cannot be found, loaded or trusted, or that answered with an error
  data,            ///< a data set, checkpoint or other input file has wrong contents
  io,              ///< the operating system refused a file, mapping or process
  shape_mismatch,  ///< tensors that do not fit together
  numerics,        ///< NaN or Inf where a number was needed
  damaged,         ///< bits have changed that nothing should have changed
  transport,       ///< moving data between ranks failed
  timeout,         ///< a deadline passed
  aborted,         ///< ended because something else failed
  peer_lost,       ///< another rank is gone
  unsaved,         ///< a checkpoint could not be written, and the job says that the run then ends
  internal,        ///< a broken invariant of our own
};

/// The only exception type of the project. A message names what was attempted, where, what was expected, what was found
/// and what to do. Messages are for people; facts on which the program acts are in other members.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::optional<int> awaited = std::nullopt);

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  /// The rank for which an operation between ranks waited in vain, or that is gone; nothing if that is not known.
  [[nodiscard]] std::optional<int> awaited() const noexcept { return awaited_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_;
  std::optional<int> awaited_;
};

/// 2 for a wrong request (usage, job, plugin, data); 1 for everything that fails later.
[[nodiscard]] int exit_code(ErrorCode code) noexcept;

}  // namespace shardrun
