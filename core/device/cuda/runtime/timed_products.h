#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/files/descriptor.h"

/// A file that records which of the algorithms that a library proposes was chosen for each product. With the file, a
/// job uses the same algorithms, and so gets the same bits, in each run and on each rank.
namespace shardrun::device::cuda {

/// The environment variable with the file's path. If it is not set, nothing is timed.
inline constexpr const char* timed_products_variable = "SHARDRUN_CUDA_TIMED_PRODUCTS";

/// The first line of the file names the library and the GPU; each other line describes one product. Processes share the
/// file: the first that needs a product times it while the others wait.
class TimedProducts {
 public:
  /// The time of each proposal in milliseconds.
  using Times = std::vector<double>;

  /// Creates the file if it does not exist. `library`: "cuBLASLt 13.1.0". Throws Error{job} if the file is for another
  /// library or GPU, or has another format, and Error{io} if the system refuses to open, lock, read or write it.
  TimedProducts(std::filesystem::path path, const std::string& library, const std::string& gpu);

  /// The index of the proposal to use, less than `proposals`: the one in the file, or else the fastest, which is then
  /// added to the file. `key` identifies the product; `text` describes it to people. `time` returns a time for each
  /// proposal. Throws as the constructor does, and what `time` throws. REQUIRES: there are proposals.
  [[nodiscard]] std::size_t find(const std::vector<std::int64_t>& key, std::size_t proposals, const std::string& text,
                                 const std::function<Times()>& time);

 private:
  /// Reads the lines added since the last call, and removes an unfinished last line. REQUIRES: the file is locked.
  void read_on();
  void take(const std::string& line);
  void append(const std::string& line);
  [[noreturn]] void refuse(std::size_t line, const std::string& found, const std::string& expected) const;

  std::filesystem::path path_;
  std::string head_;
  files::FileDescriptor file_;
  std::size_t read_ = 0;   ///< bytes of the file read so far
  std::size_t lines_ = 0;  ///< lines read so far
  struct Known {
    std::size_t proposal = 0;
    std::size_t line = 0;
  };
  std::map<std::string, Known> known_;
};

}  // namespace shardrun::device::cuda
