#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/connection.h"
#include "core/launch/protocol.h"

namespace shardrun::launch {

struct StoreServerSettings {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: any free one
  int world_size = 1;
  Token token = {};
  std::string job;                                ///< the job's text
  std::chrono::milliseconds hello_timeout{5000};  ///< from connecting to the end of a correct hello
  /// If true, ranks notice when this process hangs or its machine is lost: their connections stay open then.
  bool answers_heartbeats = false;
  /// The text that explains to a rank why its job differs.
  std::string about_other_job = "have the job file or a plugin changed while the job was starting?";
  /// Limit of connections without a hello yet, in addition to one per rank; beyond it the oldest is dropped.
  std::size_t max_strangers = 64;
};

/// Events of the ranks. Called on the io_context's thread. All must be set.
struct StoreServerEvents {
  std::function<void(int rank, const Hello& hello)> joined;
  /// Called for a process whose token is right, but whose job differs.
  std::function<void(const Hello& hello, const std::string& why)> came_with_other_job;
  std::function<void(int rank)> heard;  ///< called when it has sent any frame
  std::function<void(int rank, std::string_view kind, std::string_view bytes)> message;
  std::function<void(int rank, FailureKind kind, std::optional<int> awaited, std::string_view text)> failed;
  std::function<void(int rank)> abort_heard;
  std::function<void(int rank)> said_goodbye;
  std::function<void(int rank)> paused;
  std::function<void(int rank, const std::string& why)> closed;
  std::function<void(const std::string& line)> log;
};

/// The store of a job: a key-value store, and the control connection to each rank. Used only on the io_context's
/// thread. The io_context must not run after the server is destroyed.
///  - A connection that does not prove in time that it knows the token counts as a stranger's. It is dropped with a log
///    line, and counted.
///  - A connection that proves it, but claims a rank that has already joined, is refused.
class StoreServer {
 public:
  /// Listens. Throws Error{io}, or Error{usage} if the address is taken, is not this host's,
  /// or stands for every address.
  StoreServer(boost::asio::io_context& io, StoreServerSettings settings, StoreServerEvents events);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  [[nodiscard]] std::uint16_t port() const { return port_; }

  /// The number of strangers' connections so far.
  [[nodiscard]] std::size_t strangers() const { return strangers_ + guests_.size(); }

  /// Sets a key's value, as a rank does.
  void publish(std::string_view key, std::string_view value);

  /// Each of these tells every rank, including those that join later.
  void abort(const std::string& reason);
  void stop(int signal);
  void pause();
  void resume();

  /// Closes the connection to one rank, without an event.
  void close(int rank);

 private:
  struct Guest;
  struct Member;
  struct Waiter;

  void accept();
  void receive_guest(boost::asio::ip::tcp::socket socket);
  void drop_guest(std::uint64_t guest, const std::string& why);
  [[nodiscard]] bool drop_guest_for_room(const std::string& why);
  void hear_hello(std::uint64_t guest, FrameType type, std::string_view payload);
  void refuse(std::uint64_t guest, const std::string& why, std::string_view job = {});
  void admit(std::uint64_t guest, const Hello& hello);
  void member_frame(int rank, FrameType type, std::string_view payload);
  void set(int rank, std::string_view key, std::string_view value);
  void get(int rank, std::uint64_t request, std::string_view key);
  void send(int rank, std::string frame);
  void log_drop(const std::string& who, const std::string& why);

  boost::asio::io_context& io_;
  StoreServerSettings settings_;
  const TlsContext tls_;
  StoreServerEvents events_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_again_;
  std::uint16_t port_ = 0;
  std::uint64_t job_hash_ = 0;

  std::uint64_t next_guest_ = 0;
  std::map<std::uint64_t, Guest> guests_;  ///< connections without a hello yet
  std::vector<Member> members_;            ///< by rank
  std::size_t strangers_ = 0;              ///< number of connections dropped
  int logged_ = 0;                         ///< number of dropped or refused connections logged

  std::map<std::string, std::string, std::less<>> values_;
  std::vector<Waiter> waiters_;
  std::optional<std::string> abort_reason_;
  std::optional<int> stop_signal_;
  bool pausing_ = false;
};

}  // namespace shardrun::launch
