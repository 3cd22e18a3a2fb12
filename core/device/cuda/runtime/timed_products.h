#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/files/descriptor.h"

/// A file of choices between the algorithms that a library proposes for a product. With it a job has the same
/// algorithms, and so the same bits, in each run and on each rank.
namespace shardrun::device::cuda {

/// Names the file; without it nothing is timed.
inline constexpr const char* timed_products_variable = "SHARDRUN_CUDA_TIMED_PRODUCTS";

/// The first line of the file names the library and the GPU; each other line is a product. Processes share it: the
/// first that wants a product times it while the others wait.
class TimedProducts {
 public:
  /// Milliseconds of a run of each proposal.
  using Times = std::vector<double>;

  /// Begins the file if there is none. `library`: "cuBLASLt 13.1.0". Throws Error{job} if the file is of another
  /// library or GPU, or is no such file, and Error{io}.
  TimedProducts(std::filesystem::path path, const std::string& library, const std::string& gpu);

  /// The proposal for a product, below `proposals`: from the file, or else the fastest one, which is added to the file.
  /// `key`: identifies the product. `text`: the product for people. Throws as the constructor, and errors of `time`.
  /// REQUIRES: there are proposals; `time` has a time for each.
  [[nodiscard]] std::size_t find(const std::vector<std::int64_t>& key, std::size_t proposals, const std::string& text,
                                 const std::function<Times()>& time);

 private:
  /// Reads the lines added since, and removes an unfinished line at the end. REQUIRES: the lock on the file is held.
  void read_on();
  void take(const std::string& line);
  void append(const std::string& line);
  [[noreturn]] void refuse(std::size_t line, const std::string& found, const std::string& expected) const;

  std::filesystem::path path_;
  std::string head_;
  files::FileDescriptor file_;
  std::size_t read_ = 0;   ///< bytes
  std::size_t lines_ = 0;  ///< read
  struct Known {
    std::size_t proposal = 0;
    std::size_t line = 0;
  };
  std::map<std::string, Known> known_;
};

}  // namespace shardrun::device::cuda
