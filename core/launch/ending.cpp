#include "core/launch/ending.h"

#include <utility>

namespace shardrun::launch {

Ending::Ending(boost::asio::io_context& io, std::chrono::milliseconds hearing, std::function<void()> on_begin)
    : timer_(io), hearing_(hearing), on_begin_(std::move(on_begin)) {}

void Ending::look(const Inquest& inquest) {
  if (has_begun_ || !inquest.cause()) {
    return;
  }
  const bool is_first = !since_;
  if (is_first) {
    since_ = Clock::now();
  }
  if (inquest.is_settled()) {
    begin();
  } else if (is_first) {
    timer_.start(hearing_, [this] { begin(); });
  }
}

void Ending::begin() {
  if (std::exchange(has_begun_, true)) {
    return;
  }
  since_ = since_.value_or(Clock::now());
  timer_.cancel();
  on_begin_();
}

}  // namespace shardrun::launch
