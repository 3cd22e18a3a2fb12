#include "core/conformance/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardrun::conformance {
namespace {

constexpr std::size_t guard_bytes = 64;
constexpr auto guard = std::byte{0xA5};
constexpr auto stale = std::byte{0x5A};  ///< initial content of receive buffers

}  // namespace

Memory::Memory(Member& member, std::size_t bytes, bool registered) {
  const std::size_t all = bytes + 2 * guard_bytes;
  if (registered) {
    all_ = member.registered(all);
  } else {
    own_.resize(all + guard_bytes);
    const std::size_t off = reinterpret_cast<std::uintptr_t>(own_.data()) % guard_bytes;
    all_ = {.data = own_.data() + (guard_bytes - off) % guard_bytes, .bytes = all};
  }
  std::memset(all_.data, static_cast<int>(guard), all);
}

sdk::Buffer Memory::part(std::size_t offset, std::size_t bytes) const {
  return {.data = static_cast<std::byte*>(all_.data) + guard_bytes + offset,
          .bytes = bytes,
          .registration = all_.registration};
}

bool Memory::guards_are_whole() const {
  const auto* bytes = static_cast<const std::byte*>(all_.data);
  const auto is_guard = [](std::byte byte) { return byte == guard; };
  return std::all_of(bytes, bytes + guard_bytes, is_guard) &&
         std::all_of(bytes + all_.bytes - guard_bytes, bytes + all_.bytes, is_guard);
}

Trial::Trial(Member& member, MemberGroup& group, const Shape& shape, const BufferLayout& layout, std::uint64_t id,
             std::uint32_t flags)
    : shape_(shape), layout_(layout), rank_(group.rank), ops_(ops_of(shape)), spec_(ops_[rank_]), op_([&] {
        spec_.dtype = shape.opcode == SR_OP_BARRIER ? 0 : shape.dtype;
        spec_.reduction = sdk::find_opcode(shape.opcode)->reduces ? shape.reduction : 0;
        spec_.id = id;
        spec_.flags = flags;
        spec_.label = fmt::format("trial {}", id);
        const std::size_t size = sdk::dtype_size(shape.dtype);
        const std::size_t send_bytes = sdk::send_elements(spec_, rank_, shape.members) * size;
        const std::size_t recv_bytes = sdk::recv_elements(spec_, rank_, shape.members) * size;
        in_place_ = layout.in_place && sdk::detail::in_place_offset(spec_, rank_) && send_bytes != 0 && recv_bytes != 0;
        const Memory& first =
            memory_.emplace_back(member, in_place_ ? std::max(send_bytes, recv_bytes) : send_bytes, layout.registered);
        if (in_place_) {
          const std::size_t own = sdk::send_block(spec_, rank_, rank_).offset;
          const std::size_t place = sdk::recv_block(spec_, rank_, rank_).offset;
          send_ = first.part(place * size, send_bytes);
          recv_ = first.part(own * size, recv_bytes);
        } else {
          send_ = first.part(0, send_bytes);
          recv_ = memory_.emplace_back(member, recv_bytes, layout.registered).part(0, recv_bytes);
        }
        const std::size_t scratch = member.transport().query(spec_, shape.members).scratch_bytes;
        if (scratch != 0) {
          scratch_ = memory_.emplace_back(member, scratch, layout.registered).part(0, scratch);
        }
        return group.group.prepare({request()}, after(timeout_s));
      }()) {}

sdk::OpSpec Trial::request() const {
  sdk::OpSpec request = spec_;
  if (spec_.opcode != SR_OP_BARRIER) {
    // An op without elements is allowed to have an empty buffer, or none.
    request.send = send_->bytes != 0 || rank_ % 2 == 0 ? send_ : std::nullopt;
    request.recv = recv_->bytes != 0 || rank_ % 2 == 0 ? recv_ : std::nullopt;
  }
  request.scratch = scratch_;
  return request;
}

void Trial::fill(std::uint32_t round) {
  round_ = round;
  if (recv_->bytes != 0) {
    std::memset(recv_->data, static_cast<int>(stale), recv_->bytes);
  }
  write_sent(shape_, ops_, rank_, round, send_->data);
}

void Trial::start() { op_.start(after(timeout_s)); }

void Trial::wait() {
  if (!op_.wait(after(2 * timeout_s))) {
    fail("it neither ended nor failed long after its own deadline");
  }
}

void Trial::verify() const {
  const WrongElements wrong = wrong_received(shape_, ops_, spec_, rank_, round_, recv_->data);
  if (wrong.count != 0) {
    fail(fmt::format("{} of {} elements are wrong; the first, element {}, is {}, expected {}", wrong.count,
                     sdk::recv_elements(spec_, rank_, shape_.members), wrong.first, wrong.found, wrong.expected));
  }
  if (!in_place_ && wrong_sent(shape_, ops_, rank_, round_, send_->data).count != 0) {
    fail("its send buffer was changed");
  }
  if (!std::all_of(memory_.begin(), memory_.end(), [](const Memory& each) { return each.guards_are_whole(); })) {
    fail("bytes outside of its buffers were changed");
  }
}

std::vector<sdk::Buffer> Trial::buffers() const {
  std::vector<sdk::Buffer> all;
  for (const std::optional<sdk::Buffer>& each : {send_, recv_, scratch_}) {
    if (each) {
      all.push_back(*each);
    }
  }
  return all;
}

void Trial::run(std::uint32_t round) {
  fill(round);
  start();
  wait();
  verify();
}

void Trial::fail(const std::string& why) const {
  throw Failure(fmt::format("{} among {} members, {} place, {}registered, round {}: {}", sdk::describe(spec_),
                            shape_.members, in_place_ ? "in" : "out of", layout_.registered ? "" : "un", round_, why));
}

}  // namespace shardrun::conformance
