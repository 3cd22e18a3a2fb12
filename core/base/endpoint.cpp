#include "core/base/endpoint.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace shardrun {

std::optional<Endpoint> endpoint_of(std::string_view text) {
  Endpoint endpoint;
  if (const std::size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    std::string_view host = text.substr(0, colon);
    text.remove_prefix(colon + 1);
    if (host.starts_with('[') && host.ends_with(']')) {
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
      return std::nullopt;
    }
    if (host.empty() || host.find_first_of("[]/ ") != std::string_view::npos) {
      return std::nullopt;
    }
    endpoint.host = std::string(host);
  }
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), endpoint.port);
  const bool is_port = failed == std::errc() && end == text.data() + text.size();
  return is_port ? std::optional(endpoint) : std::nullopt;
}

std::string to_string(const Endpoint& endpoint) {
  const bool is_bracketed = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_bracketed ? "[" : "", endpoint.host, is_bracketed ? "]" : "", endpoint.port);
}

}  // namespace shardrun
