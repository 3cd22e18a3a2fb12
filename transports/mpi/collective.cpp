#include <shardrun/sdk/transport/reduce.hpp>
#include <shardrun/transport.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "transports/mpi/group.h"

namespace shardrun::mpi_transport {
namespace {

MPI_Datatype make_half() {
  MPI_Datatype half = MPI_DATATYPE_NULL;
  Library::check(MPI_Type_contiguous(2, MPI_BYTE, &half), "MPI_Type_contiguous");
  Library::check(MPI_Type_commit(&half), "MPI_Type_commit");
  return half;
}

MPI_Datatype f16() {
  static const MPI_Datatype half = make_half();
  return half;
}

MPI_Datatype bf16() {
  static const MPI_Datatype half = make_half();
  return half;
}

/// Reduces for MPI. The reduction is a template argument, because MPI passes only the type.
template <std::uint32_t reduction>
void reduce(void* from, void* to, int* count, MPI_Datatype* type) {
  const std::uint32_t dtype = *type == MPI_FLOAT    ? SR_DTYPE_F32
                              : *type == MPI_DOUBLE ? SR_DTYPE_F64
                              : *type == f16()      ? SR_DTYPE_F16
                                                    : SR_DTYPE_BF16;
  sdk::reduce(dtype, reduction, to, from, static_cast<std::uint64_t>(*count));
}

MPI_Op make_operation(MPI_User_function* function) {
  MPI_Op operation = MPI_OP_NULL;
  Library::check(MPI_Op_create(function, 1, &operation), "MPI_Op_create");
  return operation;
}

MPI_Op own_operation(std::uint32_t reduction) {
  static const std::array<MPI_Op, 4> operations = {
      make_operation(reduce<SR_REDUCE_SUM>), make_operation(reduce<SR_REDUCE_PRODUCT>),
      make_operation(reduce<SR_REDUCE_MIN>), make_operation(reduce<SR_REDUCE_MAX>)};
  return operations[reduction - SR_REDUCE_SUM];
}

/// MPI's type for an SR_DTYPE_...; 16-bit floats are types of two bytes. REQUIRES: MPI is initialised and locked.
MPI_Datatype datatype_of(std::uint32_t dtype) {
  switch (dtype) {
    case SR_DTYPE_F32: return MPI_FLOAT;
    case SR_DTYPE_F64: return MPI_DOUBLE;
    case SR_DTYPE_F16: return f16();
    case SR_DTYPE_BF16: return bf16();
    case SR_DTYPE_I8: return MPI_INT8_T;
    case SR_DTYPE_U8: return MPI_UINT8_T;
    case SR_DTYPE_I32: return MPI_INT32_T;
    case SR_DTYPE_U32: return MPI_UINT32_T;
    case SR_DTYPE_I64: return MPI_INT64_T;
    case SR_DTYPE_U64: return MPI_UINT64_T;
    default: return MPI_BYTE;
  }
}

/// The operation that reduces as shardrun/transport.h demands. MPI leaves NaN in minimum and maximum undefined, and has
/// no 16-bit floats. These cases use functions of our own, others MPI's. REQUIRES: MPI is initialised and locked.
MPI_Op operation_of(std::uint32_t dtype, std::uint32_t reduction) {
  const bool is_half = dtype == SR_DTYPE_F16 || dtype == SR_DTYPE_BF16;
  const bool is_floating = is_half || dtype == SR_DTYPE_F32 || dtype == SR_DTYPE_F64;
  switch (reduction) {
    case SR_REDUCE_SUM: return is_half ? own_operation(reduction) : MPI_SUM;
    case SR_REDUCE_PRODUCT: return is_half ? own_operation(reduction) : MPI_PROD;
    case SR_REDUCE_MIN: return is_floating ? own_operation(reduction) : MPI_MIN;
    default: return is_floating ? own_operation(reduction) : MPI_MAX;
  }
}

using sdk::OpSpec;

/// The offset of each block, in elements.
std::vector<int> offsets_of(const std::vector<int>& counts) {
  std::vector<int> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  return offsets;
}

/// Cuts a block into pieces whose size fits into an int.
std::vector<sdk::Block> pieces(const sdk::Block& block) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30U;
  std::vector<sdk::Block> all;
  for (std::uint64_t at = 0; at < block.count; at += most) {
    all.push_back({block.offset + at, std::min(most, block.count - at)});
  }
  return all;
}

std::vector<int> ints(const std::vector<std::uint64_t>& counts) { return {counts.begin(), counts.end()}; }

/// Bytes that a member sends to others with the usual algorithms; MPI does not report them.
std::uint64_t bytes_given(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  const std::uint64_t size = sdk::dtype_size(op.dtype);
  const std::uint64_t sent = sdk::send_elements(op, rank, n) * size;
  switch (op.opcode) {
    case SR_OP_BARRIER: return n - 1;
    case SR_OP_ALL_REDUCE: return 2 * sent * (n - 1) / n;
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_REDUCE_SCATTERV:
    case SR_OP_ALL_TO_ALL:
    case SR_OP_SCATTER: return sent * (n - 1) / n;
    case SR_OP_ALL_TO_ALLV: return sent - op.send_counts[rank] * size;
    case SR_OP_ALL_GATHER:
    case SR_OP_ALL_GATHERV: return sent * (n - 1);
    default: return op.peer == rank && op.opcode != SR_OP_BROADCAST ? 0 : sent;
  }
}

/// One collective. It usually has a communicator without another op, so members may start their ops in any order. On a
/// shared communicator, an op begins only once all members have started it.
class CollectiveOp final : public MpiOp, private SharedCommOp {
 public:
  CollectiveOp(MpiGroup& group, const OpSpec& op)
      : MpiOp(group, describe(op), true),
        op_(op),
        element_(sdk::dtype_size(op.dtype)),
        in_place_(sdk::is_in_place(op, group.rank(), group.size())),
        recv_counts_(ints(op.recv_counts)),
        recv_offsets_(offsets_of(recv_counts_)) {
    const auto locked = Library::instance().lock();
    type_ = datatype_of(op.dtype);
    operation_ = operation_of(op.dtype, sdk::find_opcode(op.opcode)->reduces ? op.reduction : SR_REDUCE_SUM);
    communicator_ = group.acquire_comm();
    comm_ = communicator_.comm;
    announcement_->mine = {communicator_.number, ~communicator_.number};
  }
  ~CollectiveOp() override {
    const auto locked = Library::instance().lock();
    if (communicator_.shared != nullptr) {
      if (is_in_flight() && requests().expects_more()) {
        fail({SR_ABORTED, "was freed before it was complete"});  // ops after it never begin
      }
      communicator_.shared->leave(*this, std::move(announcement_));
    } else if (!is_in_flight()) {
      group().release_comm(communicator_);
    }
  }

 private:
  [[nodiscard]] std::byte* send() const { return op_.send ? static_cast<std::byte*>(op_.send->data) : nullptr; }
  [[nodiscard]] std::byte* recv() const { return op_.recv ? static_cast<std::byte*>(op_.recv->data) : nullptr; }
  [[nodiscard]] const void* send_or_in_place() const { return in_place_ ? MPI_IN_PLACE : send(); }
  [[nodiscard]] int count() const { return static_cast<int>(op_.count); }
  [[nodiscard]] int root() const { return static_cast<int>(op_.peer); }
  [[nodiscard]] bool is_root() const { return is_root_; }
  /// Where reduce_scatter writes its result. In place that is the scratch: MPI forbids a result inside the input.
  [[nodiscard]] void* scattered() const { return in_place_ ? op_.scratch->data : recv(); }

  void launch(Requests& requests) override {
    if (communicator_.shared == nullptr) {
      give(requests);
    } else {
      requests.expect_more(true);
      communicator_.shared->start(*this, *announcement_);
    }
  }

  void begin() override {
    give(requests());
    requests().expect_more(false);
  }
  void fail(const sdk::TransportError& failure) noexcept override { group().fail(failure.within(what())); }
  [[nodiscard]] bool is_over() noexcept override { return group().has_failed(); }

  void give(Requests& requests) {
    if (op_.opcode == SR_OP_ALL_TO_ALLV) {
      give_all_to_allv(requests);
    } else {
      give_native(requests.add());
    }
    group().count(bytes_given(op_, group().rank(), group().size()));
  }

  void give_native(MPI_Request& request) {
    switch (op_.opcode) {
      case SR_OP_BARRIER: return Library::check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
      case SR_OP_BROADCAST: return broadcast(request);
      case SR_OP_REDUCE: return reduce(request);
      case SR_OP_ALL_REDUCE:
        return Library::check(MPI_Iallreduce(send_or_in_place(), recv(), count(), type_, operation_, comm_, &request),
                              "MPI_Iallreduce");
      case SR_OP_ALL_GATHER:
        return Library::check(
            MPI_Iallgather(send_or_in_place(), count(), type_, recv(), count(), type_, comm_, &request),
            "MPI_Iallgather");
      case SR_OP_ALL_GATHERV:
        return Library::check(MPI_Iallgatherv(send_or_in_place(), recv_counts_[group().rank()], type_, recv(),
                                              recv_counts_.data(), recv_offsets_.data(), type_, comm_, &request),
                              "MPI_Iallgatherv");
      case SR_OP_REDUCE_SCATTER:
        return Library::check(
            MPI_Ireduce_scatter_block(send(), scattered(), count(), type_, operation_, comm_, &request),
            "MPI_Ireduce_scatter_block");
      case SR_OP_REDUCE_SCATTERV:
        return Library::check(
            MPI_Ireduce_scatter(send(), scattered(), recv_counts_.data(), type_, operation_, comm_, &request),
            "MPI_Ireduce_scatter");
      case SR_OP_ALL_TO_ALL:
        return Library::check(MPI_Ialltoall(send(), count(), type_, recv(), count(), type_, comm_, &request),
                              "MPI_Ialltoall");
      case SR_OP_GATHER:
        return Library::check(MPI_Igather(send(), count(), type_, recv(), count(), type_, root(), comm_, &request),
                              "MPI_Igather");
      default:
        return Library::check(MPI_Iscatter(send(), count(), type_, recv(), count(), type_, root(), comm_, &request),
                              "MPI_Iscatter");
    }
  }

  void broadcast(MPI_Request& request) {
    if (is_root() && !in_place_ && op_.count != 0) {
      std::memcpy(recv(), send(), op_.count * element_);
    }
    Library::check(MPI_Ibcast(recv(), count(), type_, root(), comm_, &request), "MPI_Ibcast");
  }

  void reduce(MPI_Request& request) {
    const void* const given = is_root() ? send_or_in_place() : send();
    Library::check(MPI_Ireduce(given, recv(), count(), type_, operation_, root(), comm_, &request), "MPI_Ireduce");
  }

  /// Makes all_to_allv of sends and receives. A member knows only its own counts, so members could not agree on whether
  /// MPI's int counts are large enough.
  void give_all_to_allv(Requests& requests) {
    const std::uint32_t n = group().size();
    const std::uint32_t rank = group().rank();
    const auto part = [&](std::byte* base, const sdk::Block& block) { return base + block.offset * element_; };
    const sdk::Block own_sent = sdk::send_block(op_, rank, rank);
    if (own_sent.count != 0) {
      std::memcpy(part(recv(), sdk::recv_block(op_, rank, rank)), part(send(), own_sent), own_sent.count * element_);
    }
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      const std::uint32_t from = (rank + n - distance) % n;
      const std::uint32_t to = (rank + distance) % n;
      for (const sdk::Block& block : pieces(sdk::recv_block(op_, rank, from))) {
        Library::check(MPI_Irecv(part(recv(), block), static_cast<int>(block.count), type_, static_cast<int>(from),
                                 agreement_tag, comm_, &requests.add(group().peer(from))),
                       "MPI_Irecv");
      }
      for (const sdk::Block& block : pieces(sdk::send_block(op_, rank, to))) {
        Library::check(MPI_Isend(part(send(), block), static_cast<int>(block.count), type_, static_cast<int>(to),
                                 agreement_tag, comm_, &requests.add(group().peer(to))),
                       "MPI_Isend");
      }
    }
  }

  void finish() override {
    const bool scatters = op_.opcode == SR_OP_REDUCE_SCATTER || op_.opcode == SR_OP_REDUCE_SCATTERV;
    const std::uint64_t elements = sdk::recv_elements(op_, group().rank(), group().size());
    if (scatters && in_place_ && elements != 0) {
      std::memcpy(recv(), op_.scratch->data, elements * element_);
    }
  }

  OpSpec op_;
  std::uint64_t element_;
  bool in_place_;
  bool is_root_ = op_.peer == group().rank();
  std::vector<int> recv_counts_;
  std::vector<int> recv_offsets_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op operation_ = MPI_OP_NULL;
  CollectiveComm communicator_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::unique_ptr<Announcement> announcement_ = std::make_unique<Announcement>();
};

}  // namespace

std::unique_ptr<sdk::Op> make_collective(MpiGroup& group, const OpSpec& op) {
  return std::make_unique<CollectiveOp>(group, op);
}

}  // namespace shardrun::mpi_transport
