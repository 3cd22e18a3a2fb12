#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace shardrun::launch {

/// Splits a stream of bytes into lines. A line longer than `max_line_bytes` comes in pieces of that size.
class LineSplitter {
 public:
  static constexpr std::size_t max_line_bytes = std::size_t{64} * 1024;
  using OnLine = std::function<void(std::string_view line)>;

  explicit LineSplitter(OnLine on_line) : on_line_(std::move(on_line)) {}

  void add(std::string_view bytes);
  void end();  ///< passes on an unfinished last line, if any

 private:
  OnLine on_line_;
  std::string begun_;
};

}  // namespace shardrun::launch
