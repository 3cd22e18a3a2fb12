#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace shardrun::conformance {

/// A process that this one has started, with a pipe from it. The destructor kills it and waits for it.
class Process {
 public:
  /// `make_words` gets the descriptor that the process writes to. `inherited` stays open in it. Throws Error{io}.
  template <class MakeWords>
  Process(int inherited, MakeWords make_words) {
    open_pipe();
    spawn(make_words(write_end_), inherited);
  }
  Process(Process&& other) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  [[nodiscard]] int pipe() const noexcept { return read_end_; }
  void kill() noexcept;
  /// Reads what is available. Returns false once nothing more can come.
  [[nodiscard]] bool read_lines(std::vector<std::string>& lines);
  /// Waits for its end. Nothing where it exited with 0, or else how it ended.
  [[nodiscard]] std::optional<std::string> wait();

 private:
  void open_pipe();
  void spawn(std::vector<std::string> words, int inherited);

  int read_end_ = -1;
  int write_end_ = -1;
  pid_t pid_ = -1;
  std::string partial_;
};

}  // namespace shardrun::conformance
