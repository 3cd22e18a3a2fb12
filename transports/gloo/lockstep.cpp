#include "transports/gloo/lockstep.h"

#include <shardrun/sdk/reduce.hpp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

constexpr std::uint32_t most_members = 16;
constexpr std::uint64_t most_bytes = 65536;

class LockstepOp final : public sdk::Op, private Job {
 public:
  LockstepOp(Lockstep& lockstep, Lane& lane, std::unique_ptr<Call> call, const OpSpec& op)
      : Job(lane, describe(op), (op.flags & SR_OP_FLAG_BLOCKING) != 0),
        lockstep_(lockstep),
        lane_(lane),
        call_(std::move(call)),
        op_(op),
        element_(sdk::dtype_size(op.dtype)),
        reduces_(sdk::find_opcode(op.opcode)->reduces) {}
  ~LockstepOp() override { lane_.drop(*this); }

  void start(void*, std::int64_t deadline) override { lane_.start(*this, deadline); }
  bool test() override { return lane_.test(*this); }
  bool wait(std::int64_t deadline) override { return lane_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return times_of_run(); }

 private:
  void execute() override {
    const std::uint32_t rank = lockstep_.mesh.rank();
    const std::uint32_t n = lockstep_.mesh.size();
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      const std::uint32_t peer = (rank + distance) % n;
      lockstep_.in[peer].recycle();
      write(lockstep_.out[peer].compose(), peer);
      lockstep_.out[peer].send();
    }
    // In place, the result overwrites what this member gives.
    write(*lockstep_.own, rank);
    for (std::uint32_t from = 0; from < n; ++from) {
      take(from, from == rank ? *lockstep_.own : lockstep_.in[from].next());
    }
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      lockstep_.out[(rank + distance) % n].wait();
    }
  }

  void write(Letter& letter, std::uint32_t to) const {
    const sdk::Block block = send_block(op_, lockstep_.mesh.rank(), to);
    letter.head = {.id = call_->serial(), .bytes = block.count * element_};
    if (block.count != 0) {
      std::memcpy(letter.bytes, static_cast<const std::byte*>(op_.send->data) + block.offset * element_,
                  letter.head.bytes);
    }
  }

  void take(std::uint32_t from, const Letter& letter) const {
    const sdk::Block block = recv_block(op_, lockstep_.mesh.rank(), from);
    call_->require(lockstep_.mesh, from, letter.head, block.count * element_);
    if (block.count == 0) {
      return;
    }
    std::byte* const to = static_cast<std::byte*>(op_.recv->data) + block.offset * element_;
    if (reduces_ && from != 0) {
      sdk::reduce(op_.dtype, op_.reduction, to, letter.bytes, block.count);
    } else {
      std::memcpy(to, letter.bytes, letter.head.bytes);
    }
  }

  Lockstep& lockstep_;
  Lane& lane_;
  std::unique_ptr<Call> call_;
  OpSpec op_;
  std::uint64_t element_;
  bool reduces_;
};

}  // namespace

bool is_lockstep(const OpSpec& op, std::uint32_t n) {
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
  return n <= most_members && bytes <= letter_bytes && bytes * (n - 1) <= most_bytes;
}

Lockstep::Lockstep(Mesh& connections)
    : mesh(connections),
      out(connections, Stream::lockstep),
      in(connections, Stream::lockstep, std::size_t{2}),
      own(std::make_unique<Letter>()) {}

std::unique_ptr<sdk::Op> make_lockstep_op(Lockstep& lockstep, Lane& lane, std::unique_ptr<Call> call,
                                          const OpSpec& op) {
  return std::make_unique<LockstepOp>(lockstep, lane, std::move(call), op);
}

}  // namespace shardrun::gloo_transport
