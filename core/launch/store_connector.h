#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/connection.h"
#include "core/launch/protocol.h"

namespace shardrun::launch {

struct StoreConnectorSettings {
  std::string address;  ///< numeric; or several, separated by commas, which are tried in turn
  std::uint16_t port = 0;
  Token token = {};                                ///< the secret that both ends prove to know; it is not sent
  std::chrono::milliseconds proof_timeout{10000};  ///< from connecting to the end of the handshake
  /// Gives up after this many wrong answers instead of a proof, but not before `shortest_of_unproved` has passed since
  /// the first of them. 0: never gives up.
  int most_unproved = 0;
  std::chrono::milliseconds shortest_of_unproved{0};
};

/// All callbacks must be set.
struct StoreConnectorEvents {
  /// Called when the listener has proved that it knows the token. The caller is a callback of the connection itself,
  /// which must therefore not be destroyed in it. `own_address`: the address of this end of the connection.
  std::function<void(std::shared_ptr<FrameConnection> connection, const std::string& own_address)> proved;
  std::function<void(const std::string& why)> failed;   ///< an attempt failed; another follows
  std::function<void(const std::string& why)> refused;  ///< the last attempt failed; no other follows
};

/// Connects to the store of a job. Tries until a listener proves that it knows the token. Used only on the thread of
/// `io`.
class StoreConnector {
 public:
  StoreConnector(boost::asio::io_context& io, StoreConnectorSettings settings, StoreConnectorEvents events);
  StoreConnector(const StoreConnector&) = delete;
  StoreConnector& operator=(const StoreConnector&) = delete;
  ~StoreConnector();

  void connect();
  /// Connects again after a pause. `why`: why the last connection failed.
  void connect_later(const std::string& why);

 private:
  void pause_before_connecting(const std::string& why, std::chrono::milliseconds longest_pause);
  void shake_hands(std::shared_ptr<FrameConnection> connection);
  void not_proved(const std::string& why);
  [[nodiscard]] std::string unproved(const std::string& why) const;

  const StoreConnectorSettings settings_;
  const std::vector<std::string> addresses_;
  const StoreConnectorEvents events_;
  boost::asio::io_context& io_;
  const TlsContext tls_;
  boost::asio::steady_timer timer_;  ///< until the next attempt, or until the proof is late
  std::size_t attempts_ = 0;
  std::chrono::milliseconds pause_{20};
  std::shared_ptr<FrameConnection> connection_;  ///< until the listener has proved itself
  std::string own_address_;                      ///< of `connection_`
  int unproved_ = 0;                             ///< number of answers that were not a proof
  std::chrono::steady_clock::time_point first_unproved_;
};

}  // namespace shardrun::launch
