#include "core/launch/store_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/launch/running_timer.h"
#include "core/launch/world.h"

namespace shardrun::launch {

using boost::asio::ip::tcp;
using boost::system::error_code;

struct StoreServer::Guest {
  std::shared_ptr<FrameConnection> connection;
  std::string from;
  std::unique_ptr<RunningTimer> deadline;
};

struct StoreServer::Member {
  bool joined = false;
  std::shared_ptr<FrameConnection> connection;  ///< null before the hello and after the end
};

struct StoreServer::Waiter {
  int rank;
  std::uint64_t request;
  std::string key;
};

namespace {

FailureKind failure_kind(std::uint32_t number) {
  const auto kind = static_cast<FailureKind>(number);
  return kind == FailureKind::own || kind == FailureKind::permanent ? kind : FailureKind::consequence;
}

constexpr std::chrono::milliseconds accept_pause{50};
constexpr int logged_drops = 20;
constexpr std::size_t max_value_bytes = max_frame_bytes - 16;  ///< the rest of its frame has at most 16 bytes
/// The longest job text that is sent to a process with another job. A socket takes this many bytes at once, even if
/// nobody reads them.
constexpr std::size_t most_told_bytes = std::size_t{16} * 1024;

tcp::acceptor listen(boost::asio::io_context& io, const StoreServerSettings& settings) {
  try {
    if (is_every_address(settings.address)) {
      throw Error(
          ErrorCode::usage,
          fmt::format("cannot listen for ranks on {}: it stands for every address of this host", settings.address));
    }
    const tcp::endpoint endpoint(boost::asio::ip::make_address(settings.address), settings.port);
    tcp::acceptor acceptor(io);
    acceptor.open(endpoint.protocol());
    close_on_exec(acceptor.native_handle());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    return acceptor;
  } catch (const boost::system::system_error& error) {
    const bool is_taken = error.code() == boost::asio::error::address_in_use;
    const bool is_elsewhere = error.code() == boost::system::errc::address_not_available;
    throw Error(is_taken || is_elsewhere ? ErrorCode::usage : ErrorCode::io,
                fmt::format("cannot listen for ranks on {} port {}: {}{}", settings.address, settings.port,
                            error.code().message(),
                            is_taken ? ": is a run, or what is left of one, still there? Else choose another port "
                                       "(MASTER_PORT)"
                            : is_elsewhere ? ": rank 0 can listen only at an address of its own host (MASTER_ADDR)"
                                           : ""));
  }
}

std::string text_of(const tcp::endpoint& endpoint) {
  return fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

std::string value_frame(std::uint64_t request, std::string_view value) {
  return FrameWriter(FrameType::value).u64(request).bytes(value).finish();
}

std::string abort_frame(std::string_view reason) {
  return FrameWriter(FrameType::abort).bytes(reason.substr(0, max_frame_bytes / 2)).finish();
}

std::string stop_frame(int signal) {
  return FrameWriter(FrameType::stop).u32(static_cast<std::uint32_t>(signal)).finish();
}

}  // namespace

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerSettings settings, StoreServerEvents events)
    : io_(io),
      settings_(std::move(settings)),
      tls_(tls_context(tls::End::server, settings_.token)),
      events_(std::move(events)),
      acceptor_(listen(io, settings_)),
      accept_again_(io),
      port_(acceptor_.local_endpoint().port()),
      job_hash_(hash_name(settings_.job)),
      members_(static_cast<std::size_t>(settings_.world_size)) {
  accept();
}

StoreServer::~StoreServer() {
  for (const auto& [id, guest] : guests_) {
    guest.connection->close();
  }
  for (const Member& member : members_) {
    if (member.connection) {
      member.connection->close();
    }
  }
}

void StoreServer::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error == boost::asio::error::operation_aborted) {
      return;
    }
    if (!error) {
      receive_guest(std::move(socket));
      return accept();
    }
    if ((error == boost::asio::error::no_descriptors || error == boost::system::errc::too_many_files_open_in_system) &&
        drop_guest_for_room("it said no hello, and no descriptor is left")) {
      return accept();
    }
    // The peer has closed the connection, or other processes have used up the descriptors. Both pass, so accept again
    // after a pause.
    accept_again_.expires_after(accept_pause);
    accept_again_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) {
        accept();
      }
    });
  });
}

void StoreServer::receive_guest(tcp::socket socket) {
  error_code gone;
  const tcp::endpoint peer = socket.remote_endpoint(gone);
  const std::string from = gone ? "somebody" : text_of(peer);
  if (guests_.size() >= settings_.max_strangers + members_.size()) {
    static_cast<void>(drop_guest_for_room(fmt::format("it said no hello, and {} others wait to", guests_.size() - 1)));
  }
  const std::uint64_t id = next_guest_++;
  Guest& guest = guests_[id];
  guest.connection = std::make_shared<FrameConnection>(std::move(socket), tls_);
  guest.from = from;
  guest.deadline = std::make_unique<RunningTimer>(io_);
  guest.deadline->start(settings_.hello_timeout, [this, id] {
    drop_guest(id, fmt::format("it said no hello within {} ms", settings_.hello_timeout.count()));
  });
  guest.connection->start(
      {.frame = [this, id](FrameType type, std::string_view payload) { hear_hello(id, type, payload); },
       .closed = [this, id](const std::string& why) { drop_guest(id, why); }});
}

void StoreServer::drop_guest(std::uint64_t id, const std::string& why) {
  const auto found = guests_.find(id);
  if (found != guests_.end()) {
    found->second.connection->close();
    const std::string_view unproved =
        found->second.connection->has_proved() ? "" : "it has not proved that it knows this job's token: ";
    log_drop(found->second.from, fmt::format("{}{}", unproved, why));
    guests_.erase(found);
    ++strangers_;
  }
}

/// Drops the oldest connection without a hello, even during its handshake: strangers begin handshakes, too, and a
/// dropped rank connects again. Returns false if there is none.
bool StoreServer::drop_guest_for_room(const std::string& why) {
  if (guests_.empty()) {
    return false;
  }
  drop_guest(guests_.begin()->first, why);
  return true;
}

/// Handles a guest's hello. The guest knows the token, because the handshake is over.
void StoreServer::hear_hello(std::uint64_t id, FrameType type, std::string_view payload) {
  if (type != FrameType::hello) {
    return drop_guest(id, "it said something else than hello");
  }
  const Hello hello = decode_hello(payload);
  if (hello.world_size != members_.size()) {
    return refuse(id, fmt::format("it is one of {} ranks, and this job has {}", hello.world_size, members_.size()));
  }
  if (hello.rank >= members_.size()) {
    return refuse(id, fmt::format("there is no rank {} among {}", hello.rank, members_.size()));
  }
  if (hello.job_hash != job_hash_) {
    const std::string why = fmt::format("came with another job: {}", settings_.about_other_job);
    const bool is_told = settings_.job.size() <= most_told_bytes;
    refuse(id, fmt::format("rank {} (pid {}) {}", hello.rank, hello.pid, why), is_told ? settings_.job : "");
    return events_.came_with_other_job(hello, why + (is_told ? "; its own error says where it differs" : ""));
  }
  if (members_[hello.rank].joined) {
    return refuse(id, fmt::format("rank {} is taken", hello.rank));
  }
  admit(id, hello);
}

/// The guest knows the token, so it may hear the reason, and the job's text if its own differs.
void StoreServer::refuse(std::uint64_t id, const std::string& why, std::string_view job) {
  const std::shared_ptr<FrameConnection> connection = guests_.at(id).connection;
  log_drop(guests_.at(id).from, why);
  guests_.erase(id);
  connection->send(FrameWriter(FrameType::refused).bytes(why).bytes(job).finish(),
                   [connection] { connection->close(); });
}

void StoreServer::admit(std::uint64_t id, const Hello& hello) {
  const auto rank = static_cast<int>(hello.rank);
  Member& member = members_[hello.rank];
  member.joined = true;
  member.connection = guests_.at(id).connection;
  guests_.erase(id);
  member.connection->restart(
      {.frame = [this, rank](FrameType type, std::string_view payload) { member_frame(rank, type, payload); },
       .closed =
           [this, rank](const std::string& why) {
             close(rank);
             events_.closed(rank, why);
           }});
  send(rank, FrameWriter(FrameType::welcome).finish());
  events_.joined(rank, hello);
  if (stop_signal_) {
    send(rank, stop_frame(*stop_signal_));
  }
  if (pausing_) {
    send(rank, FrameWriter(FrameType::pause).finish());
  }
  if (abort_reason_) {
    send(rank, abort_frame(*abort_reason_));
  }
}

void StoreServer::member_frame(int rank, FrameType type, std::string_view payload) {
  PayloadReader reader(payload);
  events_.heard(rank);
  switch (type) {
    case FrameType::heartbeat:
      if (settings_.answers_heartbeats) {
        send(rank, FrameWriter(FrameType::heartbeat).finish());
      }
      return;
    case FrameType::set: {
      const std::string_view key = reader.bytes();
      return set(rank, key, reader.bytes());
    }
    case FrameType::get: {
      const std::uint64_t request = reader.u64();
      return get(rank, request, reader.bytes());
    }
    case FrameType::cancel_get: {
      const std::uint64_t request = reader.u64();
      std::erase_if(waiters_, [&](const Waiter& w) { return w.rank == rank && w.request == request; });
      return;
    }
    case FrameType::message: {
      const std::string_view kind = reader.bytes();
      return events_.message(rank, kind, reader.bytes());
    }
    case FrameType::failure: {
      const FailureKind kind = failure_kind(reader.u32());
      const std::uint32_t awaited = reader.u32();
      const bool is_other = awaited < members_.size() && static_cast<int>(awaited) != rank;
      events_.failed(rank, kind, is_other ? std::optional(static_cast<int>(awaited)) : std::nullopt, reader.bytes());
      return send(rank, FrameWriter(FrameType::failure_noted).finish());
    }
    case FrameType::paused: return events_.paused(rank);
    case FrameType::abort_heard: return events_.abort_heard(rank);
    case FrameType::goodbye: events_.said_goodbye(rank); return send(rank, FrameWriter(FrameType::farewell).finish());
    default: throw ProtocolError(fmt::format("it sent a frame of unknown type {}", static_cast<int>(type)));
  }
}

void StoreServer::set(int rank, std::string_view key, std::string_view value) {
  if (value.size() > max_value_bytes) {
    throw ProtocolError(fmt::format("it set a value of {} bytes, which no frame can hand out", value.size()));
  }
  if (values_.contains(key)) {
    return events_.failed(rank, FailureKind::own, std::nullopt,
                          fmt::format("set the key '{}' of the store, which is set already: each is set once", key));
  }
  publish(key, value);
}

void StoreServer::publish(std::string_view key, std::string_view value) {
  values_.emplace(key, value);
  std::vector<Waiter> served;
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    const bool waits = waiter.key == key;
    if (waits) {
      served.push_back(waiter);
    }
    return waits;
  });
  for (const Waiter& waiter : served) {
    send(waiter.rank, value_frame(waiter.request, value));
  }
}

void StoreServer::get(int rank, std::uint64_t request, std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    waiters_.push_back({rank, request, std::string(key)});
  } else {
    send(rank, value_frame(request, found->second));
  }
}

void StoreServer::send(int rank, std::string frame) {
  if (const auto& connection = members_[static_cast<std::size_t>(rank)].connection) {
    connection->send(std::move(frame));
  }
}

void StoreServer::abort(const std::string& reason) {
  abort_reason_ = reason;
  for (int rank = 0; rank < settings_.world_size; ++rank) {
    send(rank, abort_frame(reason));
  }
}

void StoreServer::stop(int signal) {
  stop_signal_ = signal;
  for (int rank = 0; rank < settings_.world_size; ++rank) {
    send(rank, stop_frame(signal));
  }
}

void StoreServer::pause() {
  pausing_ = true;
  for (int rank = 0; rank < settings_.world_size; ++rank) {
    send(rank, FrameWriter(FrameType::pause).finish());
  }
}

void StoreServer::resume() {
  pausing_ = false;
  for (int rank = 0; rank < settings_.world_size; ++rank) {
    send(rank, FrameWriter(FrameType::resume).finish());
  }
}

void StoreServer::close(int rank) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (member.connection) {
    member.connection->close();
    member.connection = nullptr;
  }
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.rank == rank; });
}

/// Logs only the first drops, so that a port scan does not fill the log.
void StoreServer::log_drop(const std::string& who, const std::string& why) {
  ++logged_;
  if (logged_ <= logged_drops) {
    events_.log(fmt::format("dropped a connection from {}: {}", who, why));
  } else if (logged_ == logged_drops + 1) {
    events_.log("more connections were dropped; the rest is not logged");
  }
}

}  // namespace shardrun::launch
