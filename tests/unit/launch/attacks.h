#pragma once

#include <string>
#include <vector>

#include "core/files/descriptor.h"
#include "core/launch/protocol.h"
#include "core/launch/rank.h"
#include "core/launch/tls.h"

namespace shardrun::test {

/// Where the payload of a frame begins.
inline constexpr std::size_t before_payload = launch::frame_header_bytes + 2;

/// The first byte of the records of TLS that are sent in the clear.
inline constexpr char alert_record = 21;
inline constexpr char handshake_record = 22;

/// A connection to the launcher on which nothing has been sent. Throws Error if the launcher does not listen.
[[nodiscard]] files::FileDescriptor connect_to(const launch::RankContext& context);

/// The first record of a TLS client with these settings.
[[nodiscard]] std::string client_hello(const launch::TlsContext& context);
[[nodiscard]] std::string client_hello(const launch::Token& token);

struct Attacked {
  std::vector<std::string> outcomes;  ///< "NAME: OUTCOME" each: what the launcher answered before it hung up
  int strangers = 0;                  ///< connections that did not prove that they know the token
};

/// Does to a job's launcher what a stranger on the same machine can do, one thing after the other; and then what
/// somebody who knows the token can do. `context`: that of a rank that has joined.
[[nodiscard]] Attacked attack(const launch::RankContext& context);

}  // namespace shardrun::test
