// The functions of the store client that run on the connection's own thread.

#include <fmt/format.h>

#include <utility>

#include "core/base/process.h"
#include "core/base/standard_error.h"
#include "core/launch/job_text.h"
#include "core/launch/store_client.h"

namespace shardrun::launch {
namespace {

using boost::system::error_code;

constexpr std::chrono::seconds pause_of_reminders{60};

}  // namespace

StoreConnectorEvents StoreClient::connector_events() {
  return {.proved = [this](std::shared_ptr<FrameConnection> connection,
                           const std::string& own_address) { join(std::move(connection), own_address); },
          .failed =
              [this](const std::string& why) {
                const std::lock_guard lock(mutex_);
                trouble_ = why;
              },
          .refused = [this](const std::string& why) { refuse(why); }};
}

void StoreClient::join(std::shared_ptr<FrameConnection> connection, const std::string& own_address) {
  {
    const std::lock_guard lock(mutex_);
    own_address_ = own_address;
  }
  connection_ = std::move(connection);
  connection_->restart({.frame = [this](FrameType type, std::string_view payload) { handle(type, payload); },
                        .closed = [this](const std::string& why) { lost(why); }});
  connection_->send(encode_hello(settings_.hello));
}

void StoreClient::handle(FrameType type, std::string_view payload) {
  PayloadReader reader(payload);
  heartbeats_.hear();
  switch (type) {
    case FrameType::heartbeat: return;
    case FrameType::abort: {
      // The launcher is told first, because later failures of this rank may be consequences of the abort.
      const std::string reason(reader.bytes());
      {
        const std::lock_guard lock(mutex_);
        ended_by_listener_ = true;
      }
      return connection_->send(FrameWriter(FrameType::abort_heard).finish(), [this, reason] { abort(reason); });
    }
    case FrameType::stop: stop_signal_ = static_cast<int>(reader.u32()); return;
    case FrameType::pause: pause_asked_ = true; return;
    case FrameType::refused: {
      std::string why = fmt::format("{} refused this process: {}", settings_.listener, reader.bytes());
      if (const std::string_view job = reader.bytes(); !job.empty()) {
        why += fmt::format("; the first difference is {}", first_difference(settings_.job, job));
      }
      return refuse(why);
    }
    default: return handle_answer(type, reader);
  }
}

/// Handles the frames for which the caller's thread waits.
void StoreClient::handle_answer(FrameType type, PayloadReader& reader) {
  const std::lock_guard lock(mutex_);
  switch (type) {
    case FrameType::resume:
      pause_asked_ = false;
      resumed_ = true;
      break;
    case FrameType::welcome:
      welcome_ = true;
      heartbeats_.start();
      break;
    case FrameType::value:
      if (const auto request = requests_.find(reader.u64()); request != requests_.end()) {
        request->second = reader.bytes();
      }
      break;
    case FrameType::failure_noted: failure_noted_ = true; break;
    case FrameType::farewell:
      farewell_ = true;
      heartbeats_.stop();
      break;
    default: throw ProtocolError(fmt::format("it sent a frame of unknown type {}", static_cast<int>(type)));
  }
  changed_.notify_all();
}

void StoreClient::refuse(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    refused_ = why;
  }
  changed_.notify_all();
}

void StoreClient::on_silence(Heartbeats::Clock::duration silent) {
  if (aborted_) {
    return;
  }
  connection_->close();
  {
    const std::lock_guard lock(mutex_);
    connection_lost_ = true;
  }
  abort(fmt::format("rank 0 has not answered for {:.1f} s", std::chrono::duration<double>(silent).count()));
}

void StoreClient::lost(const std::string& why) {
  bool joined = false;
  {
    const std::lock_guard lock(mutex_);
    joined = welcome_;
    connection_lost_ = joined;
    changed_.notify_all();
    if (refused_ || farewell_) {
      return;
    }
  }
  if (joined) {
    abort(fmt::format("the connection to {} is lost: {}", settings_.listener, why));
  } else {
    connector_.connect_later(fmt::format("{} hung up: {}", settings_.listener, why));
  }
}

/// An error on this end counts as the loss of the connection.
void StoreClient::broke(const std::string& why) {
  if (connection_) {
    connection_->close();
  }
  std::unique_lock lock(mutex_);
  const bool joined = welcome_;
  lock.unlock();
  joined ? lost(why) : connector_.connect_later(why);
}

void StoreClient::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (abort_reason_ || farewell_) {
      return;
    }
    abort_reason_ = reason;
    aborted_ = true;
  }
  changed_.notify_all();
  end_after_grace(reason);
  const std::lock_guard lock(callback_mutex_);
  if (callback_) {
    std::exchange(callback_, nullptr)(reason);
  }
}

void StoreClient::remind_after(std::chrono::milliseconds pause) {
  reminder_timer_.expires_after(pause);
  reminder_timer_.async_wait([this](const error_code& cancelled) {
    std::string trouble = "no answer yet";
    {
      const std::lock_guard lock(mutex_);
      if (cancelled || welcome_ || refused_) {
        return;
      }
      trouble = trouble_.empty() ? trouble : trouble_;
    }
    write_to_standard_error(fmt::format("rank {} waits for {} at {} port {}: {}\n", settings_.hello.rank,
                                        settings_.listener, settings_.store.address, settings_.store.port, trouble),
                            Patience::brief);
    remind_after(pause_of_reminders);
  });
}

/// If `grace` is set, ends this process after that time, because no launcher of shardrun is there to kill it.
void StoreClient::end_after_grace(const std::string& reason) {
  if (settings_.grace.count() == 0) {
    return;
  }
  grace_timer_.start(settings_.grace, [this, reason] {
    write_to_standard_error(fmt::format("shardrun: rank {} (pid {}) has not ended {:.1f} s after the job, and is "
                                        "ended now; the job: {}\n",
                                        settings_.hello.rank, settings_.hello.pid,
                                        std::chrono::duration<double>(settings_.grace).count(), reason),
                            Patience::brief);
    end_process(1);
  });
}

}  // namespace shardrun::launch
