#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace shardrun::launch {

/// Cuts a stream of bytes into lines. A line that grows longer than `max_line_bytes` is given in pieces of that size.
class LineSplitter {
 public:
  static constexpr std::size_t max_line_bytes = std::size_t{64} * 1024;
  using OnLine = std::function<void(std::string_view line)>;

  explicit LineSplitter(OnLine on_line) : on_line_(std::move(on_line)) {}

  void add(std::string_view bytes);
  void end();  ///< gives what stands behind the last newline, if anything

 private:
  OnLine on_line_;
  std::string begun_;
};

}  // namespace shardrun::launch
