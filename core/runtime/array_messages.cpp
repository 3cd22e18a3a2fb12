#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/runtime/array_collectives.h"

// Messages of an engine. Each consists of a header with the array's element type and shape, and of the elements.

namespace shardrun::runtime {
namespace {

constexpr std::uint32_t message_call = 100;  // differs from the numbers of all collectives

std::string name_of(std::uint32_t peer, bool is_send) {
  return fmt::format("{} rank {}", is_send ? "send to" : "receive from", peer);
}

}  // namespace

ArrayCollectives::Link& ArrayCollectives::link(std::uint32_t peer, bool is_send) {
  if (peer >= world_size_ || peer == rank_) {
    throw Error(ErrorCode::plugin, peer == rank_ ? fmt::format("rank {} cannot exchange messages with itself", rank_)
                                                 : fmt::format("there is no rank {}: the job has {}",
                                                               static_cast<std::int32_t>(peer), world_size_));
  }
  const auto found = links_.find({peer, is_send});
  if (found == links_.end()) {
    throw Error(ErrorCode::plugin,
                "the engine does not say that it exchanges messages: give it the flag "
                "SR_ENGINE_MESSAGES");
  }
  return found->second;
}

std::uint64_t ArrayCollectives::add_message(Message message) {
  messages_.emplace(++next_message_, std::move(message));
  return next_message_;
}

/// Starts a message's header or its elements. The sender is the first member of the link's group.
ArrayCollectives::Part ArrayCollectives::start_part(const Message& message, std::string_view what, std::uint64_t count,
                                                    void* data, std::uint64_t bytes, std::uint32_t dtype) {
  sdk::OpSpec op;
  op.opcode = message.is_send ? SR_OP_SEND : SR_OP_RECV;
  op.peer = message.is_send ? 1 : 0;
  op.dtype = dtype;
  op.count = count;
  (message.is_send ? op.send : op.recv) = sdk::Buffer{.data = data, .bytes = bytes};
  op.label = fmt::format("{}{}", what, name_of(message.peer, message.is_send));
  Link& over = link(message.peer, message.is_send);
  return start(over.group, std::move(op),
               fmt::format("rank {} to {}, {}", message.is_send ? rank_ : message.peer,
                           message.is_send ? message.peer : rank_, ++over.transfers));
}

void ArrayCollectives::start_header(Message& message) {
  message.header = start_part(message, "header of ", sizeof(Facts), &message.facts, sizeof(Facts), SR_DTYPE_U8);
}

void ArrayCollectives::start_data(Message& message) {
  if (message.array.elements() > 0) {
    message.data = start_part(message, "", static_cast<std::uint64_t>(message.array.elements()), message.bytes.data(),
                              message.bytes.size(), transport_type(message.array.dtype()));
  }
}

void ArrayCollectives::deliver(const Message& message) {
  void* const to = message.make != nullptr ? (*message.make)(message.array) : message.array.address;
  if (!message.bytes.empty()) {
    std::memcpy(to, message.bytes.data(), message.bytes.size());
  }
}

std::uint64_t ArrayCollectives::start_send(std::uint32_t to, const plugins::ArrayView& array) {
  const TimedCall call = timed(name_of(to, true), static_cast<std::int64_t>(array.bytes()));
  Link& over = link(to, true);
  over.latest = facts_of(message_call, array);
  ++over.messages;
  const std::uint64_t number = add_message({.peer = to, .is_send = true, .facts = over.latest, .array = array});
  Message& message = messages_.at(number);
  if (array.elements() > 0) {
    const auto* const first = static_cast<const std::byte*>(array.address);
    message.bytes.assign(first, first + array.bytes());
  }
  start_header(message);
  start_data(message);
  return number;
}

std::uint64_t ArrayCollectives::start_receive(std::uint32_t from, const plugins::ArrayView& array) {
  const TimedCall call = timed(name_of(from, false), static_cast<std::int64_t>(array.bytes()));
  static_cast<void>(link(from, false));
  const std::uint64_t number = add_message({.peer = from, .array = array});
  Message& message = messages_.at(number);
  if (advance_earlier(number, message, false)) {
    advance(message, false);
  }
  return number;
}

bool ArrayCollectives::finished(std::optional<Part>& part, bool waits) {
  if (part && !waits && !collectives_->test_once(part->op)) {
    return false;
  }
  if (part) {
    finish(*std::exchange(part, std::nullopt));
  }
  return true;
}

void ArrayCollectives::advance(Message& message, bool waits) {
  if (!message.is_send && !message.has_header) {
    if (!message.header) {
      start_header(message);
    }
    std::uint64_t& received = link(message.peer, false).messages;
    try {
      if (!finished(message.header, waits)) {
        return;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) {
        throw;
      }
      throw Error(error.code(),
                  fmt::format("message {} of rank {} to rank {} has not come; every receive needs a send of the other "
                              "rank: {}",
                              received + 1, message.peer, rank_, error.message()),
                  error.awaited());
    }
    ++received;
    message.has_header = true;
    const plugins::ArrayView sent{.element = message.facts.element, .shape = shape_of(message.facts)};
    if (message.make != nullptr) {
      message.array = sent;
    } else if (sent.element != message.array.element || sent.shape != message.array.shape) {
      throw Error(ErrorCode::plugin,
                  fmt::format("rank {} sent an array [{}] of {}, and it is received into one [{}] of {}", message.peer,
                              fmt::join(sent.shape, ", "), to_string(sent.dtype()),
                              fmt::join(message.array.shape, ", "), to_string(message.array.dtype())));
    }
    message.bytes.resize(message.array.bytes());
    start_data(message);
  }
  message.is_complete = finished(message.header, waits) && finished(message.data, waits);
}

bool ArrayCollectives::advance_earlier(std::uint64_t number, const Message& message, bool waits) {
  if (message.is_send) {
    return true;
  }
  for (auto& [earlier, other] : messages_) {
    if (earlier >= number) {
      break;
    }
    if (other.is_send || other.peer != message.peer || other.is_complete) {
      continue;
    }
    advance(other, waits);
    if (!other.is_complete) {
      return false;
    }
  }
  return true;
}

bool ArrayCollectives::test(std::uint64_t number) {
  const auto found = messages_.find(number);
  if (found == messages_.end()) {
    throw Error(ErrorCode::plugin, fmt::format("there is no message {}, or it was waited for", number));
  }
  Message& message = found->second;
  if (!message.is_complete && advance_earlier(number, message, false)) {
    advance(message, false);
  }
  return message.is_complete;
}

void ArrayCollectives::wait(std::uint64_t number) {
  const auto found = messages_.find(number);
  const TimedCall call =
      timed(found == messages_.end() ? "wait" : "wait for " + name_of(found->second.peer, found->second.is_send));
  end_message(number);
}

void ArrayCollectives::end_message(std::uint64_t number) {
  if (!test(number)) {
    Message& message = messages_.at(number);
    static_cast<void>(advance_earlier(number, message, true));
    advance(message, true);
  }
  if (const Message& message = messages_.at(number); !message.is_send) {
    deliver(message);
  }
  messages_.erase(number);
}

void ArrayCollectives::receive(std::uint32_t from, const plugins::MakeArray& make) {
  const TimedCall call = timed(name_of(from, false));
  static_cast<void>(link(from, false));
  end_message(add_message({.peer = from, .make = &make}));
}

void ArrayCollectives::require_no_messages() {
  if (!messages_.empty()) {
    const Message& message = messages_.begin()->second;
    throw Error(ErrorCode::plugin,
                fmt::format("the engine ends with {} messages for which it has not waited; the first is one {} rank {}",
                            messages_.size(), message.is_send ? "to" : "from", message.peer));
  }
  if (links_.empty()) {
    return;
  }
  std::vector<double> received(std::size_t{world_size_} * world_size_);  // by receiver, then sender
  for (const auto& [of, each] : links_) {
    if (const auto& [peer, is_send] = of; !is_send) {
      received[std::size_t{rank_} * world_size_ + peer] = static_cast<double>(each.messages);
    }
  }
  add_up(received);
  for (const auto& [of, each] : links_) {
    const auto& [peer, is_send] = of;
    const auto arrived = static_cast<std::uint64_t>(received[std::size_t{peer} * world_size_ + rank_]);
    if (is_send && arrived < each.messages) {
      throw Error(ErrorCode::plugin,
                  fmt::format("the engine ends with {} to rank {} that it has not received: rank {} has sent {}, the "
                              "last an array [{}] of {}",
                              counted(static_cast<std::int64_t>(each.messages - arrived), "message"), peer, rank_,
                              each.messages, fmt::join(shape_of(each.latest), ", "),
                              to_string(plugins::ArrayView{.element = each.latest.element}.dtype())));
    }
  }
}

}  // namespace shardrun::runtime
