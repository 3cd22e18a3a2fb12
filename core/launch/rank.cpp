#include "core/launch/rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/base/process.h"
#include "core/launch/store_client.h"
#include "core/launch/tls.h"

namespace shardrun::launch {
namespace {

constexpr std::chrono::seconds failure_deadline{2};
constexpr int most_unproved = 5;
constexpr std::chrono::seconds shortest_of_unproved{10};
constexpr std::chrono::seconds first_reminder{5};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

StoreClientSettings settings_of(const RankContext& context, const std::string& job) {
  return {.store = {.address = context.address,
                    .port = context.port,
                    .token = context.token,
                    .most_unproved = context.is_hosted ? most_unproved : 0,
                    .shortest_of_unproved = shortest_of_unproved},
          .listener = context.is_hosted ? "rank 0" : "the launcher",
          .hello = {.rank = static_cast<std::uint32_t>(context.rank),
                    .world_size = static_cast<std::uint32_t>(context.world_size),
                    .pid = static_cast<std::uint32_t>(::getpid()),
                    .job_hash = hash_name(job),
                    .host = host_name()},
          .job = job,
          .heartbeat = context.heartbeat,
          .silence = context.is_hosted ? context.silence : std::chrono::milliseconds(0),
          .grace = context.grace,
          .first_reminder = context.is_hosted && context.rank != 0 ? first_reminder : std::chrono::seconds(0)};
}

}  // namespace

class Rank::Connection : public StoreClient {
 public:
  using StoreClient::StoreClient;
};

Rank::Rank(RankContext context, const std::string& job, Deadline deadline)
    : context_(std::move(context)), connection_(std::make_unique<Connection>(settings_of(context_, job), deadline)) {}

Rank::~Rank() = default;

void Rank::meet() {
  if (!context_.is_hosted) {
    return;
  }
  context_.run = get("run", no_deadline);
  std::istringstream words(get("machines", no_deadline));
  context_.machines.assign(std::istream_iterator<std::uint32_t>(words), std::istream_iterator<std::uint32_t>());
  if (context_.machines.size() != static_cast<std::size_t>(context_.world_size)) {
    throw Error(ErrorCode::io, fmt::format("rank 0 told of the machines of {} ranks, expected {}",
                                           context_.machines.size(), context_.world_size));
  }
  if (context_.local_world_size == 0) {
    const auto first = context_.machines.begin();
    const std::uint32_t own = context_.machines[static_cast<std::size_t>(context_.rank)];
    context_.local_rank = static_cast<int>(std::count(first, first + context_.rank, own));
    context_.local_world_size = static_cast<int>(std::count(first, context_.machines.end(), own));
  }
}

std::string Rank::own_address() const {
  return context_.own_address.empty() ? connection_->own_address() : context_.own_address;
}

std::array<std::uint8_t, 32> Rank::key_for(std::string_view purpose) const {
  return derive_key(context_.token, purpose);
}

void Rank::set(std::string_view key, std::span<const std::byte> value) { connection_->set(key, as_text(value)); }

void Rank::set(std::string_view key, std::string_view value) { connection_->set(key, value); }

std::string Rank::get(std::string_view key, Deadline deadline) { return connection_->get(key, deadline); }

void Rank::message(std::string_view kind, std::string_view bytes) { connection_->message(kind, bytes); }

void Rank::message(std::string_view kind, std::span<const std::byte> bytes) {
  connection_->message(kind, as_text(bytes));
}

const std::atomic<bool>& Rank::aborted() const noexcept { return connection_->aborted(); }

std::string Rank::abort_reason() const { return connection_->abort_reason(); }

void Rank::on_abort(std::function<void(const std::string&)> callback) { connection_->on_abort(std::move(callback)); }

int Rank::stop_signal() const noexcept { return connection_->stop_signal(); }

bool Rank::pause_asked() const noexcept { return connection_->pause_asked(); }

void Rank::pause() { connection_->pause(); }

bool Rank::fail(FailureKind kind, std::string_view text, std::optional<int> awaited) noexcept {
  return connection_->fail(kind, text, awaited, Clock::now() + failure_deadline);
}

void Rank::goodbye(Deadline deadline) { connection_->goodbye(deadline); }

void Rank::await_end(Deadline deadline) noexcept { connection_->await_end(deadline); }

}  // namespace shardrun::launch
