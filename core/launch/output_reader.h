#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/files/descriptor.h"

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

/// Reads one of a rank's output pipes line by line.
class OutputReader {
 public:
  OutputReader(boost::asio::io_context& io, files::FileDescriptor pipe, LineSplitter::OnLine on_line);

  void start();

  /// Passes on what is left in the pipe and closes it. Used after the rank has ended, because its descendants may keep
  /// the pipe open for longer.
  void drain();

 private:
  boost::asio::posix::stream_descriptor pipe_;
  LineSplitter lines_;
  std::array<char, 16384> chunk_ = {};
};

}  // namespace shardrun::launch
