#include "core/launch/store_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "core/base/process.h"
#include "core/launch/signals.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

constexpr std::size_t max_unsent_bytes = std::size_t{64} * 1024 * 1024;

}  // namespace

Heartbeats::Heartbeats(boost::asio::io_context& io, std::chrono::milliseconds interval,
                       std::chrono::milliseconds silence, std::function<void()> send,
                       std::function<void(Clock::duration)> on_silence)
    : timer_(io), interval_(interval), silence_(silence), send_(std::move(send)), on_silence_(std::move(on_silence)) {}

void Heartbeats::start() {
  is_beating_ = true;
  last_beat_ = heard_ = Clock::now();
  beat();
}

void Heartbeats::beat() {
  send_();
  timer_.expires_after(interval_);
  timer_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled && is_beating_) {
      check_silence();
      beat();
    }
  });
}

/// Time in which this process was suspended does not count as silence.
void Heartbeats::check_silence() {
  const Clock::time_point now = Clock::now();
  heard_ += time_held_up(now - std::exchange(last_beat_, now), interval_);
  if (silence_.count() > 0 && now - heard_ > silence_) {
    on_silence_(now - heard_);
  }
}

StoreClient::StoreClient(StoreClientSettings settings, Deadline deadline)
    : settings_(std::move(settings)),
      connector_(io_, settings_.store, connector_events()),
      heartbeats_(
          io_, settings_.heartbeat, settings_.silence,
          [this] { connection_->send(FrameWriter(FrameType::heartbeat).finish()); },
          [this](Heartbeats::Clock::duration silent) { on_silence(silent); }),
      grace_timer_(io_),
      reminder_timer_(io_) {
  boost::asio::post(io_, [this] {
    connector_.connect();
    if (settings_.first_reminder.count() > 0) {
      remind_after(settings_.first_reminder);
    }
  });
  start_thread();
  try {
    await_welcome(deadline);
  } catch (...) {
    end_thread();
    throw;
  }
}

StoreClient::~StoreClient() { end_thread(); }

void StoreClient::start_thread() {
  thread_ = thread_without_signals("the thread of the control connection", [this] {
    const auto work = boost::asio::make_work_guard(io_);
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& error) {
        broke(error.what());
      }
    }
  });
}

void StoreClient::end_thread() {
  io_.stop();
  thread_.join();
  if (connection_) {
    connection_->close();
  }
}

/// Waits until the condition holds or the deadline has passed. Deadline::max() means no deadline: wait_for could
/// overflow on it. For other deadlines, time in which this process was suspended does not count.
template <typename Condition>
void StoreClient::wait(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met) {
  if (deadline == Deadline::max()) {
    return changed_.wait(lock, met);
  }
  constexpr std::chrono::nanoseconds look = std::chrono::milliseconds(50);
  auto now = std::chrono::steady_clock::now();
  while (!met() && now < deadline) {
    changed_.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline - now, look), met);
    const auto before = std::exchange(now, std::chrono::steady_clock::now());
    deadline += time_held_up(now - before, look);
  }
}

void StoreClient::await_welcome(Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait(lock, deadline, [this] { return welcome_ || refused_; });
  if (refused_) {
    throw Error(ErrorCode::io, *refused_);
  }
  if (!welcome_) {
    throw Error(ErrorCode::io,
                fmt::format("rank {} could not join its job at {} port {} in time: {}", settings_.hello.rank,
                            settings_.store.address, settings_.store.port, trouble_.empty() ? "no answer" : trouble_));
  }
}

void StoreClient::set(std::string_view key, std::string_view value) {
  if (aborted_) {
    throw aborted_error(fmt::format("set the key '{}'", key));
  }
  post(FrameWriter(FrameType::set).bytes(key).bytes(value).finish());
}

std::string StoreClient::get(std::string_view key, Deadline deadline) {
  const auto began = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto asked = unanswered_.find(key);
  const bool is_new = asked == unanswered_.end();
  const std::uint64_t request = is_new ? next_request_++ : asked->second;
  if (is_new) {
    requests_[request] = std::nullopt;
    lock.unlock();
    post(FrameWriter(FrameType::get).u64(request).bytes(key).finish());
    lock.lock();
  } else {
    unanswered_.erase(asked);
  }
  wait(lock, deadline, [&] { return requests_[request] || abort_reason_; });
  if (const std::optional<std::string> value = std::move(requests_[request])) {
    requests_.erase(request);
    return *value;
  }
  if (abort_reason_) {
    requests_.erase(request);
    lock.unlock();
    throw aborted_error(fmt::format("wait for the key '{}'", key));
  }
  const std::uint64_t cancelled = keep_request(key, request);
  lock.unlock();
  if (cancelled != no_request) {
    post(FrameWriter(FrameType::cancel_get).u64(cancelled).finish());
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  throw Error(ErrorCode::timeout, fmt::format("rank {} waited {:.1f} s for the key '{}', which no rank has set",
                                              settings_.hello.rank, waited.count(), key));
}

/// Keeps an open request, so that a later wait for the same key can take its answer, however long the store takes.
/// Returns a request that must be cancelled instead, or `no_request`.
std::uint64_t StoreClient::keep_request(std::string_view key, std::uint64_t request) {
  constexpr std::size_t most = 64;
  std::uint64_t cancelled = no_request;
  if (const auto [kept, is_new] = unanswered_.emplace(key, request); !is_new) {
    cancelled = request;  // another thread has waited for the same key
  } else if (unanswered_.size() > most) {
    const auto oldest = std::ranges::min_element(unanswered_, {}, [](const auto& each) { return each.second; });
    cancelled = oldest->second;
    unanswered_.erase(oldest);
  }
  requests_.erase(cancelled);
  return cancelled;
}

void StoreClient::message(std::string_view kind, std::string_view bytes) {
  if (unsent_bytes_ > max_unsent_bytes) {
    throw Error(ErrorCode::io, fmt::format("{} has not read the last {} MiB of messages of rank {}", settings_.listener,
                                           max_unsent_bytes >> 20U, settings_.hello.rank));
  }
  post(FrameWriter(FrameType::message).bytes(kind).bytes(bytes).finish());
}

bool StoreClient::fail(FailureKind kind, std::string_view text, std::optional<int> awaited, Deadline deadline) {
  const bool own = kind != FailureKind::consequence && !aborted_;
  post(FrameWriter(FrameType::failure)
           .u32(static_cast<std::uint32_t>(own ? kind : FailureKind::consequence))
           .u32(awaited ? static_cast<std::uint32_t>(*awaited) : none_awaited)
           .bytes(text.substr(0, max_frame_bytes / 2))
           .finish());
  std::unique_lock lock(mutex_);
  wait(lock, deadline, [&] {
    return (connection_lost_ && (abort_reason_ || farewell_)) || (failure_noted_ && (own || abort_reason_));
  });
  return failure_noted_ || (!own && ended_by_listener_);
}

void StoreClient::goodbye(Deadline deadline) {
  post(FrameWriter(FrameType::goodbye).finish());
  std::unique_lock lock(mutex_);
  wait(lock, deadline, [this] { return farewell_ || abort_reason_; });
  if (farewell_) {
    return;
  }
  lock.unlock();
  if (aborted_) {
    throw aborted_error("say goodbye");
  }
  throw Error(ErrorCode::io, fmt::format("rank {} said goodbye, but {} did not answer in time", settings_.hello.rank,
                                         settings_.listener));
}

void StoreClient::await_end(Deadline deadline) noexcept {
  std::unique_lock lock(mutex_);
  wait(lock, deadline, [this] { return connection_lost_; });
}

std::string StoreClient::own_address() const {
  const std::lock_guard lock(mutex_);
  return own_address_;
}

void StoreClient::pause() {
  std::unique_lock lock(mutex_);
  resumed_ = false;
  lock.unlock();
  post(FrameWriter(FrameType::paused).finish());
  lock.lock();
  changed_.wait(lock, [this] { return resumed_ || abort_reason_; });
  lock.unlock();
  if (aborted_) {
    throw aborted_error("go on after a pause");
  }
}

void StoreClient::post(std::string frame) {
  unsent_bytes_ += frame.size();
  boost::asio::post(io_, [this, frame = std::move(frame)]() mutable {
    const std::size_t size = frame.size();
    connection_->send(std::move(frame), [this, size] { unsent_bytes_ -= size; });
  });
}

void StoreClient::on_abort(std::function<void(const std::string&)> callback) {
  const std::lock_guard lock(callback_mutex_);
  callback_ = std::move(callback);
  if (aborted_ && callback_) {
    std::exchange(callback_, nullptr)(abort_reason());
  }
}

std::string StoreClient::abort_reason() const {
  const std::lock_guard lock(mutex_);
  return abort_reason_.value_or("");
}

Error StoreClient::aborted_error(std::string_view attempted) const {
  return Error(ErrorCode::aborted, fmt::format("rank {} could not {}: the job is aborted: {}", settings_.hello.rank,
                                               attempted, abort_reason()));
}

}  // namespace shardrun::launch
