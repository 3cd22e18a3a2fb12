#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/conformance/values.h"
#include "tests/unit/transports_nccl/fakes.h"

namespace shardrun::test {

using conformance::Shape;

/// One collective on one rank, with the data of the conformance suite.
class Moved {
 public:
  Moved(Rank& rank, plugins::TransportGroup& group, const Shape& shape, std::uint64_t id, bool in_place,
        bool in_order = false)
      : rank_(rank.rank()), shape_(shape), spec_(conformance::op_of(shape, rank_)) {
    const std::size_t size = sdk::dtype_size(shape.dtype);
    sends_ = sdk::send_elements(spec_, rank_, shape.members) * size;
    receives_ = sdk::recv_elements(spec_, rank_, shape.members) * size;
    const bool one_buffer = in_place && sdk::detail::in_place_offset(spec_, rank_) && sends_ != 0 && receives_ != 0;
    memory_ = std::make_unique<DeviceMemory>(rank_, one_buffer ? std::max(sends_, receives_) : sends_ + receives_ + 8);
    send_ = one_buffer ? sdk::recv_block(spec_, rank_, rank_).offset * size : 0;
    recv_ = one_buffer ? sdk::send_block(spec_, rank_, rank_).offset * size : (sends_ + 7) / 8 * 8;
    sdk::OpSpec request = spec_;
    request.dtype = spec_.opcode == SR_OP_BARRIER ? 0 : spec_.dtype;
    request.reduction = sdk::find_opcode(spec_.opcode)->reduces ? spec_.reduction : 0;
    request.flags = in_order ? SR_OP_FLAG_IN_ORDER : 0;
    request.id = id;
    if (spec_.opcode != SR_OP_BARRIER) {
      request.send = memory_->buffer(send_, sends_);
      request.recv = memory_->buffer(recv_, receives_);
    }
    if (const std::uint64_t needed = rank.transport().query(request, shape.members).scratch_bytes; needed != 0) {
      scratch_ = std::make_unique<DeviceMemory>(rank_, needed);
      request.scratch = scratch_->buffer();
    }
    op_.push_back(group.prepare({request}, after(30)));
  }

  /// What is wrong with what arrived; "" if nothing is.
  std::string run(std::uint32_t round) {
    std::vector<unsigned char> sent(sends_);
    const std::vector<sdk::OpSpec> ops = conformance::ops_of(shape_);
    conformance::write_sent(shape_, ops, rank_, round, sent.data());
    memory_->write(send_, sent.data(), sends_);
    test::run(op_[0]);
    std::vector<unsigned char> received(receives_);
    memory_->read(recv_, received.data(), receives_);
    const bool same = conformance::wrong_received(shape_, ops, spec_, rank_, round, received.data()).count == 0;
    return same ? "" : sdk::describe(spec_) + " on member " + std::to_string(rank_) + "\n";
  }

 private:
  std::uint32_t rank_;
  Shape shape_;
  sdk::OpSpec spec_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceMemory> scratch_;
  std::size_t sends_ = 0;
  std::size_t receives_ = 0;
  std::size_t send_ = 0;
  std::size_t recv_ = 0;
  std::vector<plugins::TransportOp> op_;
};

}  // namespace shardrun::test
