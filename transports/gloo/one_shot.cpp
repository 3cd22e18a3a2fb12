#include "transports/gloo/one_shot.h"

#include <shardrun/sdk/transport/reduce.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

constexpr std::uint32_t most_members = 16;
constexpr std::uint64_t most_bytes = 65536;

class OneShotOp final : public sdk::Op, private QueuedOp {
 public:
  OneShotOp(OneShot& one_shot, OpQueue& queue, std::unique_ptr<PreparedCollective> prepared, const OpSpec& op)
      : QueuedOp(queue, describe(op), (op.flags & SR_OP_FLAG_BLOCKING) != 0),
        one_shot_(one_shot),
        queue_(queue),
        prepared_(std::move(prepared)),
        op_(op),
        element_(sdk::dtype_size(op.dtype)),
        reduces_(sdk::find_opcode(op.opcode)->reduces),
        reducer_(op.dtype, op.reduction) {}
  ~OneShotOp() override { queue_.drop(*this); }

  void start(void*, sdk::Deadline deadline) override { queue_.start(*this, deadline); }
  bool test() override { return queue_.test(*this); }
  bool wait(sdk::Deadline deadline) override { return queue_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return times_of_run(); }

 private:
  void execute() override {
    const std::uint32_t rank = one_shot_.mesh.rank();
    const std::uint32_t n = one_shot_.mesh.size();
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      const std::uint32_t peer = (rank + distance) % n;
      one_shot_.in[peer].recycle();
      write(one_shot_.out[peer].compose(), peer);
      one_shot_.out[peer].send();
    }
    // Where the op is in place, the result overwrites this member's input.
    write(*one_shot_.own, rank);
    std::array<const EagerMessage*, most_members> arrived = {};
    for (std::uint32_t from = 0; from < n; ++from) {
      arrived[from] = from == rank ? one_shot_.own.get() : &one_shot_.in[from].next();
      const std::uint64_t bytes = recv_block(op_, rank, from).count * element_;
      prepared_->require(one_shot_.mesh, from, arrived[from]->header, bytes);
      if (!reduces_ && bytes != 0) {
        std::memcpy(received_from(from), arrived[from]->bytes, bytes);
      }
    }
    if (reduces_) {
      reducer_.run(
          n, [&](std::size_t from) { return arrived[from]->bytes; }, 1,
          [&](std::size_t) { return received_from(rank); }, recv_elements(op_, rank, n));
    }
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      one_shot_.out[(rank + distance) % n].wait();
    }
  }

  void write(EagerMessage& message, std::uint32_t to) const {
    const sdk::Block block = send_block(op_, one_shot_.mesh.rank(), to);
    message.header = {.id = prepared_->serial(), .bytes = block.count * element_};
    if (block.count != 0) {
      std::memcpy(message.bytes, static_cast<const std::byte*>(op_.send->data) + block.offset * element_,
                  message.header.bytes);
    }
  }

  [[nodiscard]] std::byte* received_from(std::uint32_t from) const {
    return static_cast<std::byte*>(op_.recv->data) + recv_block(op_, one_shot_.mesh.rank(), from).offset * element_;
  }

  OneShot& one_shot_;
  OpQueue& queue_;
  std::unique_ptr<PreparedCollective> prepared_;
  OpSpec op_;
  std::uint64_t element_;
  bool reduces_;
  sdk::Reducer reducer_;
};

}  // namespace

bool is_one_shot(const OpSpec& op, std::uint32_t n) {
  std::uint64_t block = 0;
  switch (op.opcode) {
    case SR_OP_BARRIER: break;
    case SR_OP_ALL_REDUCE:
    case SR_OP_ALL_GATHER:
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_ALL_TO_ALL: block = op.count; break;
    case SR_OP_ALL_GATHERV:
    case SR_OP_REDUCE_SCATTERV: block = *std::max_element(op.recv_counts.begin(), op.recv_counts.end()); break;
    default: return false;
  }
  const std::uint64_t bytes = block * sdk::dtype_size(op.dtype);
  return n <= most_members && bytes <= eager_bytes && bytes * (n - 1) <= most_bytes;
}

OneShot::OneShot(FullMesh& connections)
    : mesh(connections),
      out(connections, Channel::one_shot),
      in(connections, Channel::one_shot, std::size_t{2}),
      own(std::make_unique<EagerMessage>()) {}

std::unique_ptr<sdk::Op> make_one_shot_op(OneShot& one_shot, OpQueue& queue,
                                          std::unique_ptr<PreparedCollective> prepared, const OpSpec& op) {
  return std::make_unique<OneShotOp>(one_shot, queue, std::move(prepared), op);
}

}  // namespace shardrun::gloo_transport
