#include "core/conformance/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "plugins/loader/transport.h"

namespace shardrun::conformance {

std::int64_t after(double seconds) { return plugins::transport_clock() + static_cast<std::int64_t>(seconds * 1e9); }

void Peer::meet(const std::string& place, std::uint32_t n) {
  tell("met at " + place, "");
  for (std::uint32_t other = 0; other < n; ++other) {
    (void)hear("met at " + place, other);
  }
}

void Peer::tell(const std::string& name, const std::string& value) {
  store_.set(fmt::format("{}/{}", name, rank_), value);
}

std::string Peer::hear(const std::string& name, std::uint32_t from) {
  std::optional<std::string> value = store_.get(fmt::format("{}/{}", name, from), after(2 * timeout_s));
  if (!value) {
    throw Failure(store_.aborted() ? other_failed : fmt::format("rank {} did not come to '{}'", from, name));
  }
  return std::move(*value);
}

void Peer::note(std::string text) {
  if (std::ranges::find(notes_, text) == notes_.end()) {
    notes_.push_back(std::move(text));
  }
}

}  // namespace shardrun::conformance
