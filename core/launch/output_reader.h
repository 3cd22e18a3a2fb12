#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "core/files/descriptor.h"
#include "core/launch/lines.h"

namespace shardrun::launch {

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
