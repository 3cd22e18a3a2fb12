#include "core/launch/rank.h"

#include <unistd.h>

#include <utility>

#include "core/launch/store_client.h"

namespace shardrun::launch {
namespace {

constexpr std::chrono::seconds failure_deadline{2};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

StoreClientSettings settings_of(const RankContext& context, std::uint64_t job_hash) {
  return {.address = context.address,
          .port = context.port,
          .hello = {.token = context.token,
                    .rank = static_cast<std::uint32_t>(context.rank),
                    .pid = static_cast<std::uint32_t>(::getpid()),
                    .job_hash = job_hash,
                    .host = host_name()},
          .heartbeat = context.heartbeat};
}

}  // namespace

class Rank::Line : public StoreClient {
 public:
  using StoreClient::StoreClient;
};

Rank::Rank(RankContext context, std::uint64_t job_hash, Deadline deadline)
    : context_(std::move(context)), line_(std::make_unique<Line>(settings_of(context_, job_hash), deadline)) {}

Rank::~Rank() = default;

void Rank::set(std::string_view key, std::span<const std::byte> value) { line_->set(key, text_of(value)); }

void Rank::set(std::string_view key, std::string_view value) { line_->set(key, value); }

std::string Rank::get(std::string_view key, Deadline deadline) { return line_->get(key, deadline); }

void Rank::message(std::string_view kind, std::string_view bytes) { line_->message(kind, bytes); }

void Rank::message(std::string_view kind, std::span<const std::byte> bytes) { line_->message(kind, text_of(bytes)); }

const std::atomic<bool>& Rank::aborted() const noexcept { return line_->aborted(); }

std::string Rank::abort_reason() const { return line_->abort_reason(); }

void Rank::on_abort(std::function<void(const std::string&)> callback) { line_->on_abort(std::move(callback)); }

int Rank::stop_signal() const noexcept { return line_->stop_signal(); }

bool Rank::pause_asked() const noexcept { return line_->pause_asked(); }

void Rank::pause() { line_->pause(); }

void Rank::fail(FailureKind kind, std::string_view text, std::optional<int> awaited) noexcept {
  line_->fail(kind, text, awaited, Clock::now() + failure_deadline);
}

void Rank::goodbye(Deadline deadline) { line_->goodbye(deadline); }

}  // namespace shardrun::launch
