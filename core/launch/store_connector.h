#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/launch/connection.h"
#include "core/launch/handshake.h"

namespace shardrun::launch {

struct StoreConnectorSettings {
  std::string address;
  std::uint16_t port = 0;
  Token token = {};                                ///< which is proved to be known, and not sent
  std::chrono::milliseconds proof_timeout{10000};  ///< from connecting to the proof of what listens
  int most_unproved =
      0;  ///< wrong answers instead of a proof, after which no other connection is tried; 0: one always is
  std::chrono::milliseconds shortest_of_unproved{0};  ///< from the first of them, before which that does not hold
};

/// All must be set.
struct StoreConnectorEvents {
  /// What listens has proved that it knows the token. The connection is sealed; it still has the connector's events,
  /// and this is called by one of them. `own_address`: of its own end.
  std::function<void(std::shared_ptr<FrameConnection> connection, const std::string& own_address)> proved;
  std::function<void(const std::string& why)> failed;   ///< an attempt; another follows
  std::function<void(const std::string& why)> refused;  ///< no other follows
};

/// Finds the place where the ranks of a job meet: connects until something listens there and proves that it knows the
/// token. Belongs to the thread of `io`.
class StoreConnector {
 public:
  StoreConnector(boost::asio::io_context& io, StoreConnectorSettings settings, StoreConnectorEvents events);
  StoreConnector(const StoreConnector&) = delete;
  StoreConnector& operator=(const StoreConnector&) = delete;
  ~StoreConnector();

  void connect();
  /// Connects again, after a while: the last connection came to nothing because of `why`.
  void connect_later(const std::string& why);

 private:
  void pause_before_connecting(const std::string& why, std::chrono::milliseconds longest_pause);
  void greet(std::shared_ptr<FrameConnection> connection);
  void check_proof(FrameType type, std::string_view payload);
  void not_proved(const std::string& why);
  [[nodiscard]] std::string unproved(const std::string& why) const;

  const StoreConnectorSettings settings_;
  const StoreConnectorEvents events_;
  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;  ///< until the next attempt, or until the proof is late
  std::chrono::milliseconds pause_{20};
  std::shared_ptr<FrameConnection> connection_;  ///< until it is proved
  std::string own_address_;                      ///< of that
  Nonce nonce_ = {};                             ///< of that
  int unproved_ = 0;                             ///< connections
  std::chrono::steady_clock::time_point first_unproved_;
};

}  // namespace shardrun::launch
