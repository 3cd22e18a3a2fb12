#include "core/launch/lines.h"

#include <algorithm>

namespace shardrun::launch {

void LineSplitter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const bool whole = bytes.front() == '\n';
    if (whole || begun_.size() == max_line_bytes) {
      on_line_(begun_);
      begun_.clear();
    }
    if (whole) {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t taken = std::min({bytes.find('\n'), bytes.size(), max_line_bytes - begun_.size()});
    begun_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
  }
}

void LineSplitter::end() {
  if (!begun_.empty()) {
    on_line_(begun_);
    begun_.clear();
  }
}

}  // namespace shardrun::launch
